//! The segments in a work request.

use super::{Path, Structure, Value};
use crate::{
    context::ServiceType,
    layout::{Field, Layout},
    wqe::*,
};

/// The queue that a work request was fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Send queue of a queue pair with this service. A send queue without a queue pair counts as `RawEth`.
    Send(ServiceType),
    /// Receive queue.
    Receive,
    /// Shared receive queue.
    Shared,
}

/// Names the fields of a work request as [`Structure::walk`] does.
pub fn walk(queue: Queue, whole: &[u8], found: &mut dyn FnMut(&Path<'_>, Value<'_>)) {
    let mut at = 0;
    let mut one = |name, size: usize, fields: &'static [Field]| {
        Structure::one(name, at, size, fields).walk(whole, found);
        at += size;
        at
    };
    // The inline bit of a send requests padding in a receive.
    let scatter = |at| Structure::list("data", at, DataSeg::SIZE, usize::MAX, DataSeg::FIELDS);
    let at = match queue {
        Queue::Receive => return scatter(0).walk(whole, found),
        Queue::Shared => {
            let at = one("next", NextSeg::SIZE, NextSeg::FIELDS);
            return scatter(at).walk(whole, found);
        }
        Queue::Send(service) => {
            let opcode = CtrlSeg::read(whole).opcode();
            let mut at = one("ctrl", CtrlSeg::SIZE, CtrlSeg::FIELDS);
            match service {
                ServiceType::Xrc => at = one("xrc", XrcSeg::SIZE, XrcSeg::FIELDS),
                ServiceType::Ud | ServiceType::Qp1 if opcode != WqeOpcode::Umr => {
                    let vector = AvSeg::read(whole.get(at..).unwrap_or_default());
                    let size = if vector.ext() { AvSeg::SIZE } else { AvSeg::BASE_SIZE };
                    at = one("av", size, AvSeg::FIELDS);
                }
                ServiceType::RawEth if opcode != WqeOpcode::Nop && opcode != WqeOpcode::Umr => {
                    let eth = EthSeg::read(whole.get(at..).unwrap_or_default());
                    at = one("eth", EthSeg::SIZE, EthSeg::FIELDS);
                    let headers = if eth.insert_vlan() { 0 } else { usize::from(eth.inline_hdr_sz()) };
                    let behind = (EthSeg::INLINE_START + headers).next_multiple_of(WQE_DS) - EthSeg::SIZE;
                    if headers > 2 {
                        at = one("headers", behind, &[]);
                    }
                }
                _ => {}
            }
            if opcode.has_raddr() {
                at = one("raddr", RaddrSeg::SIZE, RaddrSeg::FIELDS);
            }
            if opcode.is_atomic() {
                at = one("atomic", AtomicSeg::SIZE, AtomicSeg::FIELDS);
            }
            if opcode == WqeOpcode::Umr {
                let inline = UmrCtrlSeg::read(whole.get(at..).unwrap_or_default()).inline_data();
                one("umr", UmrCtrlSeg::SIZE, UmrCtrlSeg::FIELDS);
                at = one("mkc", MkeyContextSeg::SIZE, MkeyContextSeg::FIELDS);
                if inline {
                    Structure::list("klm", at, KlmSeg::SIZE, usize::MAX, KlmSeg::FIELDS).walk(whole, found);
                    return;
                }
            }
            at
        }
    };
    data(whole, at, found);
}

/// Data and inline segments, from offset `at` to the end.
fn data(whole: &[u8], mut at: usize, found: &mut dyn FnMut(&Path<'_>, Value<'_>)) {
    let mut index = 0;
    while let Some(rest) = whole.get(at..).filter(|rest| !rest.is_empty()) {
        let path = |name| Path { outer: None, name, index: Some(index) };
        let inline = InlineSeg::read(rest);
        let size = if inline.inline_data() {
            let span = InlineSeg::span(inline.byte_count().into());
            let own = &rest[..span.min(rest.len())];
            super::fields(
                &path("inline"),
                InlineSeg::FIELDS,
                &own[..InlineSeg::SIZE.min(own.len())],
                at,
                found,
            );
            super::fields(
                &path("inline_bytes"),
                &[],
                own.get(InlineSeg::SIZE..).unwrap_or_default(),
                at,
                found,
            );
            span
        } else {
            let own = &rest[..DataSeg::SIZE.min(rest.len())];
            super::fields(&path("data"), DataSeg::FIELDS, own, at, found);
            DataSeg::SIZE
        };
        at += size;
        index += 1;
    }
}
