//! Properties required of every layout, with or without a header to compare with.

use super::cases::{Case, all};
use proptest::prelude::*;

/// The bits of row `row` of `case`.
fn mask(case: &Case, row: usize) -> Vec<u8> {
    let field = &case.fields[row];
    let mut mask = vec![0u8; case.size];
    for bit in field.offset..field.offset + field.width {
        mask[bit / 8] |= 0x80 >> (bit % 8);
    }
    mask
}

#[test]
fn a_row_written_alone_changes_its_own_bits_and_no_others() {
    for case in all() {
        for (row, field) in case.fields.iter().enumerate() {
            let mask = mask(&case, row);
            assert_eq!((case.fill)(row, &vec![0; case.size]), mask, "{}.{} on zeros", case.ours, field.name);
        }
    }
}

#[test]
fn every_field_of_zeros_and_ones_can_be_read() {
    for case in all() {
        assert!((case.read)(&vec![0; case.size]).ends_with("None"), "{}", case.ours);
        (case.read)(&vec![0xff; case.size]);
        (case.read)(&[]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn a_row_written_over_anything_leaves_the_rest(bytes in prop::collection::vec(any::<u8>(), 0x2000), pick in any::<usize>()) {
        for case in all() {
            let row = pick % case.fields.len();
            let before = &bytes[..case.size];
            let after = (case.fill)(row, before);
            for (i, own) in mask(&case, row).into_iter().enumerate() {
                prop_assert_eq!(after[i], before[i] | own, "{}.{} byte {:#x}", case.ours, case.fields[row].name, i);
            }
        }
    }

    #[test]
    fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..0x2000)) {
        for case in all() {
            (case.read)(&bytes);
        }
    }
}
