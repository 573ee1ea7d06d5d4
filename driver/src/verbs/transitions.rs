//! Legal state transitions of queue pairs, with their attributes by service (IBTA 11.2.5.2, table 91).

use super::{QpAttrMask as Mask, QpState, QpState::*, Service, Service::*};
use hwspec::cmd::Opcode;

/// A legal transition: its command, required attributes and optional attributes.
pub(super) struct Transition {
    pub op: Opcode,
    pub required: Mask,
    pub optional: Mask,
}

/// From, to, command, and the attributes for each service. Unlisted services do not have the transition.
type Row = (QpState, QpState, Opcode, &'static [(&'static [Service], Mask, Mask)]);

const NONE: Mask = Mask::empty();
const PLACE: Mask = Mask::PKEY_INDEX.union(Mask::PORT);
const CONNECTED: Mask = PLACE.union(Mask::ACCESS_FLAGS);
const PEER: Mask = Mask::AV.union(Mask::PATH_MTU).union(Mask::DEST_QPN).union(Mask::RQ_PSN);
const RESPONDER: Mask = PEER.union(Mask::MAX_DEST_RD_ATOMIC).union(Mask::MIN_RNR_TIMER);
const REQUESTER: Mask = Mask::TIMEOUT
    .union(Mask::RETRY_CNT)
    .union(Mask::RNR_RETRY)
    .union(Mask::SQ_PSN)
    .union(Mask::MAX_QP_RD_ATOMIC);
const RIGHTS: Mask = Mask::ACCESS_FLAGS.union(Mask::PKEY_INDEX).union(Mask::ALT_PATH);
const KEYS: Mask = Mask::PKEY_INDEX.union(Mask::QKEY);
/// Path migration: there is no alternate path, so only values that change nothing are accepted.
const MIGRATION: Mask = Mask::ALT_PATH.union(Mask::PATH_MIG_STATE);
const RUNS: Mask = Mask::CUR_STATE.union(Mask::ACCESS_FLAGS).union(MIGRATION);
const RUNS_RNR: Mask = RUNS.union(Mask::MIN_RNR_TIMER);
const RUNS_QKEY: Mask = Mask::CUR_STATE.union(Mask::QKEY);

/// Attributes that may be changed in RTS.
const RUNNING: &[(&[Service], Mask, Mask)] = &[
    (&[Rc, XrcTgt], NONE, RUNS_RNR),
    (&[Uc, XrcIni], NONE, RUNS),
    (&[Ud, Gsi], NONE, RUNS_QKEY),
    (&[RawPacket], NONE, NONE),
];

/// Attributes that may be changed in SQD.
const DRAINED_UC: Mask = RIGHTS.union(MIGRATION).union(Mask::AV);
const DRAINED_INI: Mask = DRAINED_UC
    .union(Mask::PORT)
    .union(Mask::TIMEOUT)
    .union(Mask::RETRY_CNT)
    .union(Mask::RNR_RETRY)
    .union(Mask::MAX_QP_RD_ATOMIC);
const DRAINED_TGT: Mask = DRAINED_UC
    .union(Mask::PORT)
    .union(Mask::TIMEOUT)
    .union(Mask::MAX_DEST_RD_ATOMIC)
    .union(Mask::MIN_RNR_TIMER);

const TABLE: &[Row] = &[
    (
        Reset,
        Init,
        Opcode::Rst2initQp,
        &[
            (&[Rc, Uc, XrcIni, XrcTgt], CONNECTED, NONE),
            (&[Ud], PLACE.union(Mask::QKEY), NONE),
            (&[Gsi], KEYS, Mask::PORT),
            (&[RawPacket], Mask::PORT, NONE),
            (&[Keys], PLACE, NONE),
        ],
    ),
    (
        Init,
        Init,
        Opcode::Init2initQp,
        &[
            (&[Rc, Uc, XrcIni, XrcTgt], NONE, CONNECTED),
            (&[Ud], NONE, PLACE.union(Mask::QKEY)),
            (&[Gsi], NONE, KEYS),
            (&[RawPacket], NONE, NONE),
        ],
    ),
    (
        Init,
        Rtr,
        Opcode::Init2rtrQp,
        &[
            (&[Rc, XrcTgt], RESPONDER, RIGHTS),
            (&[Uc, XrcIni], PEER, RIGHTS),
            (&[Ud, Gsi], NONE, KEYS),
            (&[RawPacket, Keys], NONE, NONE),
        ],
    ),
    (
        Rtr,
        Rts,
        Opcode::Rtr2rtsQp,
        &[
            (&[Rc], REQUESTER, RUNS_RNR),
            (&[XrcIni], REQUESTER, RUNS),
            (&[XrcTgt], Mask::TIMEOUT.union(Mask::SQ_PSN), RUNS_RNR),
            (&[Uc], Mask::SQ_PSN, RUNS),
            (&[Ud, Gsi], Mask::SQ_PSN, RUNS_QKEY),
            (&[RawPacket, Keys], NONE, NONE),
        ],
    ),
    (Rts, Rts, Opcode::Rts2rtsQp, RUNNING),
    (Rts, Sqd, Opcode::Rts2sqdQp, &[(&[Rc, Uc, Ud, Gsi, XrcIni, XrcTgt], NONE, Mask::EN_SQD_ASYNC_NOTIFY)]),
    (Sqd, Rts, Opcode::SqdRtsQp, RUNNING),
    (
        Sqd,
        Sqd,
        Opcode::Sqd2sqdQp,
        &[
            (&[Rc], NONE, DRAINED_INI.union(DRAINED_TGT)),
            (&[XrcIni], NONE, DRAINED_INI),
            (&[XrcTgt], NONE, DRAINED_TGT),
            (&[Uc], NONE, DRAINED_UC),
            (&[Ud, Gsi], NONE, KEYS),
        ],
    ),
    (Sqe, Rts, Opcode::Sqerr2rtsQp, &[(&[Uc], NONE, RUNS), (&[Ud, Gsi], NONE, RUNS_QKEY)]),
];

/// Looks up a transition in the table.
pub(super) fn transition(service: Service, from: QpState, to: QpState) -> Option<Transition> {
    match to {
        Reset => return Some(Transition { op: Opcode::Qp2Rst, required: NONE, optional: NONE }),
        // Linux's table has no transition from RESET to ERR (qp_state_table, drivers/infiniband/core/verbs.c).
        Err if from == Reset => return None,
        Err => return Some(Transition { op: Opcode::Qp2Err, required: NONE, optional: NONE }),
        _ => {}
    }
    let (_, _, op, kinds) = TABLE.iter().find(|row| (row.0, row.1) == (from, to))?;
    let (_, required, optional) = kinds.iter().find(|(of, ..)| of.contains(&service))?;
    Some(Transition { op: *op, required: *required, optional: *optional })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Service; 7] = [Rc, Uc, Ud, XrcIni, XrcTgt, RawPacket, Gsi];

    #[test]
    fn every_transition_the_table_lacks_is_refused() {
        let always = [(Reset, Init), (Init, Init), (Init, Rtr), (Rtr, Rts), (Rts, Rts), (Sqd, Rts)];
        for service in ALL {
            for from in [Reset, Init, Rtr, Rts, Sqd, Sqe, Err] {
                for to in [Init, Rtr, Rts, Sqd, Sqe] {
                    let restarts = (from, to) == (Sqe, Rts) && matches!(service, Uc | Ud | Gsi)
                        || to == Sqd && matches!(from, Rts | Sqd) && service != RawPacket;
                    assert_eq!(
                        transition(service, from, to).is_some(),
                        restarts || always.contains(&(from, to)),
                        "{service:?}: {from:?} {to:?}"
                    );
                }
                assert!(transition(service, from, Reset).is_some(), "{service:?}: {from:?}");
                assert_eq!(transition(service, from, Err).is_some(), from != Reset, "{service:?}: {from:?}");
            }
        }
    }

    #[test]
    fn nothing_is_both_required_and_optional() {
        for (from, to, _, kinds) in TABLE {
            for (of, required, optional) in *kinds {
                assert!((*required & *optional).is_empty(), "{from:?} {to:?} {of:?}");
            }
        }
    }
}
