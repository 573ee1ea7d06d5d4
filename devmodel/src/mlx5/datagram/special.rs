//! The port's special queue pairs (IBTA 13.5.1).

use crate::{
    region::Func,
    state::{GroupRow, QpRow},
};

/// Indices of all queue pairs that act as QP `number` of the port.
pub(crate) fn special_qps(func: &Func<'_>, number: usize) -> Vec<u32> {
    let first = func.function().special_qp.get(number).copied().unwrap_or(0);
    let next = |index: &u32| func.row::<QpRow>(*index)?.special_next.checked_sub(1);
    std::iter::successors(first.checked_sub(1), next).take(GroupRow::MAX_MEMBERS).collect()
}
