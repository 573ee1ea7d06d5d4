//! The port's special queue pairs: QP0 for subnet management, QP1 for general services (IBTA 13.5.1).
//!
//! There is one QP0, but each user context may have a QP1. All of them receive every packet sent to QP1: the users of a
//! shared function tell by the content of a MAD which of them it is for, as the kernel's agents do behind their one QP1.

use super::call::Call;
use crate::{
    mlx5::special_qps,
    region::Func,
    state::{GroupRow, QpRow},
};
use hwspec::context::ServiceType;

/// The QP number of a special service.
fn which(service: ServiceType) -> Option<usize> {
    match service {
        ServiceType::Qp0 => Some(0),
        ServiceType::Qp1 => Some(1),
        _ => None,
    }
}

/// True if the caller may create a QP of this service; always true for other services.
pub(super) fn may_create(call: &Call<'_, '_, '_>, service: ServiceType) -> bool {
    let Some(number) = which(service) else { return true };
    let there = special_qps(call.func, number);
    let own = |index: &u32| call.func.row::<QpRow>(*index).is_some_and(|row| row.head.uid == call.uid);
    match number {
        0 => there.is_empty(),
        _ => there.len() < GroupRow::MAX_MEMBERS && !there.iter().any(own),
    }
}

/// Registers a queue pair that was created.
pub(super) fn enter(func: &mut Func<'_>, service: ServiceType, index: u32) {
    let Some(number) = which(service) else { return };
    let first = func.function().special_qp[number];
    if let Some(row) = func.row_mut::<QpRow>(index) {
        row.special_next = first;
    }
    func.function_mut(|f| &mut f.special_qp)[number] = index + 1;
}

/// Unregisters a queue pair that is being destroyed.
pub(super) fn leave(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<QpRow>(index) else { return };
    let (next, service) = (row.special_next, ServiceType::from_raw(row.service));
    let Some(number) = which(service) else { return };
    let is_before = |i: &u32| func.row::<QpRow>(*i).is_some_and(|row| row.special_next == index + 1);
    match special_qps(func, number).into_iter().find(is_before) {
        Some(before) => {
            if let Some(row) = func.row_mut::<QpRow>(before) {
                row.special_next = next;
            }
        }
        None => func.function_mut(|f| &mut f.special_qp)[number] = next,
    }
}
