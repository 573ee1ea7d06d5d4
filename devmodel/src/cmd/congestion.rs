//! Congestion control of the port: its parameters, status and statistics. Only the PF, which owns the port, may change them; they apply
//! to all functions.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::{
    LinkLayer,
    state::{CongestionRow, Counters, QpRow},
};
use hwspec::{
    cmd::congestion::*,
    context::congestion::{CongProtocol, RoceNotificationPoint, RoceReactionPoint},
    layout::{Layout, prefix},
};

/// Priorities of a port.
const PRIORITIES: u8 = 8;

/// The row's index for `protocol`.
fn place(call: &Call<'_, '_, '_>, protocol: CongProtocol) -> Done<usize> {
    Syndrome::NotOnThisLink.unless(call.step.config.link_layer == LinkLayer::Ethernet)?;
    CongestionRow::place(protocol).ok_or(super::refusal::Refused(Syndrome::CongProtocol))
}

/// The row, mutable, if the caller may change it.
fn change<'a>(call: &'a mut Call<'_, '_, '_>) -> Done<&'a mut CongestionRow> {
    Syndrome::FunctionId.unless(call.func.fid() == 0)?;
    Ok(call.func.function_mut(|f| &mut f.congestion))
}

pub(super) fn query_status(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryCongStatusIn = call.input()?;
    let place = place(call, input.cong_protocol())?;
    Syndrome::CongPriority.unless(input.priority() < PRIORITIES)?;
    let p = call.step.dcqcn();
    let off = [p.rp_off, p.np_off][place];
    call.answer(&QueryCongStatusOut::with(|s| s.enable(off >> input.priority() & 1 == 0)))
}

pub(super) fn modify_status(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyCongStatusIn = call.input()?;
    let place = place(call, input.cong_protocol())?;
    // Tags belong to 802.1Qau.
    Syndrome::CongPriority.unless(input.priority() < PRIORITIES && !input.tag_enable())?;
    let off = &mut change(call)?.off[place];
    *off = *off & !(1 << input.priority()) | u32::from(!input.enable()) << input.priority();
    Ok(())
}

pub(super) fn query_parameters(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryCongParamsIn = call.input()?;
    let place = place(call, input.cong_protocol())?;
    let p = call.step.dcqcn();
    let (mut reaction, mut notification) = (RoceReactionPoint::zeroed(), RoceNotificationPoint::zeroed());
    reaction
        .set()
        .clamp_tgt_rate(p.clamp_tgt_rate)
        .clamp_tgt_rate_after_time_inc(p.clamp_tgt_rate_after_time_inc)
        .rpg_time_reset(p.rpg_time_reset)
        .rpg_byte_reset(p.rpg_byte_reset)
        .rpg_threshold(p.rpg_threshold.into())
        .rpg_max_rate(p.rpg_max_rate)
        .rpg_ai_rate(p.rpg_ai_rate)
        .rpg_hai_rate(p.rpg_hai_rate)
        .rpg_gd(p.rpg_gd.into())
        .rpg_min_dec_fac(p.rpg_min_dec_fac.into())
        .rpg_min_rate(p.rpg_min_rate)
        .rate_to_set_on_first_cnp(p.rate_to_set_on_first_cnp)
        .dce_tcp_g(p.dce_tcp_g.into())
        .dce_tcp_rtt(p.dce_tcp_rtt)
        .rate_reduce_monitor_period(p.rate_reduce_monitor_period)
        .initial_alpha_value(p.initial_alpha_value.into());
    notification
        .set()
        .min_time_between_cnps(p.min_time_between_cnps)
        .cnp_dscp(p.cnp_dscp)
        .cnp_prio_mode(p.cnp_prio_mode)
        .cnp_802p_prio(p.cnp_802p_prio);
    let mut out = QueryCongParamsOut::zeroed();
    out.set().congestion_parameters(prefix([reaction.bytes(), notification.bytes()][place]));
    call.answer(&out)
}

pub(super) fn modify_parameters(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyCongParamsIn = call.input()?;
    let place = place(call, input.cong_protocol())?;
    let (select, given) = (u32::from_be_bytes(input.field_select()), input.congestion_parameters());
    let row = change(call)?;
    let taken = match place {
        0 => row.set_reaction(select, &RoceReactionPoint::read(&given)),
        _ => row.set_notification(select, &RoceNotificationPoint::read(&given)),
    };
    Syndrome::CongParameter.unless(taken)?;
    Ok(())
}

pub(super) fn query_statistics(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryCongStatisticsIn = call.input()?;
    Syndrome::NotOnThisLink.unless(call.step.config.link_layer == LinkLayer::Ethernet)?;
    let counters = call.func.function().counters;
    let count = |counter: Counters| {
        let value = counters[counter as usize];
        ((value >> 32) as u32, value as u32)
    };
    let fid = call.func.fid();
    let limited =
        call.func.region().objects::<QpRow>(fid).filter(|(_, row)| row.requester.is_limited()).count() as u32;
    let (ignored, handled) = (count(Counters::RpCnpIgnored), count(Counters::RpCnpHandled));
    let (marked, sent) = (count(Counters::NpEcnMarkedRocePackets), count(Counters::NpCnpSent));
    let now = call.step.now / 1_000_000;
    let mut out = QueryCongStatisticsOut::zeroed();
    out.set()
        .rp_cur_flows(limited)
        .sum_flows(limited)
        .accumulators_period(1)
        .rp_cnp_ignored_high(ignored.0)
        .rp_cnp_ignored_low(ignored.1)
        .rp_cnp_handled_high(handled.0)
        .rp_cnp_handled_low(handled.1)
        .time_stamp_high((now >> 32) as u32)
        .time_stamp_low(now as u32)
        .np_ecn_marked_roce_packets_high(marked.0)
        .np_ecn_marked_roce_packets_low(marked.1)
        .np_cnp_sent_high(sent.0)
        .np_cnp_sent_low(sent.1);
    if input.clear() {
        let counters = call.func.function_mut(|f| &mut f.counters);
        for counter in [
            Counters::RpCnpIgnored,
            Counters::RpCnpHandled,
            Counters::NpEcnMarkedRocePackets,
            Counters::NpCnpSent,
        ] {
            counters[counter as usize] = 0;
        }
    }
    call.answer(&out)
}
