//! Commands of congestion control.
use super::CmdOut;
use crate::context::congestion::CongProtocol;

commands! {
    0x822 QueryCongStatus
        in QueryCongStatusIn: 0x10 {
            0x008 [ 7: 4] priority: u8,
            0x008 [ 3: 0] cong_protocol: CongProtocol,
        }
        out QueryCongStatusOut: 0x10 {
            0x00c [31:31] enable: bool,
            0x00c [30:30] tag_enable: bool,
        }

    0x823 ModifyCongStatus
        in ModifyCongStatusIn: 0x10 {
            0x008 [ 7: 4] priority: u8,
            0x008 [ 3: 0] cong_protocol: CongProtocol,
            0x00c [31:31] enable: bool,
            0x00c [30:30] tag_enable: bool,
        }
        out CmdOut

    0x824 QueryCongParams
        in QueryCongParamsIn: 0x10 { 0x008 [ 3: 0] cong_protocol: CongProtocol }
        out QueryCongParamsOut: 0x110 {
            /// [`RoceReactionPoint`](crate::context::congestion::RoceReactionPoint) or
            /// [`RoceNotificationPoint`](crate::context::congestion::RoceNotificationPoint).
            0x010         congestion_parameters: [u8; 0x100],
        }

    0x825 ModifyCongParams
        in ModifyCongParamsIn: 0x120 {
            0x008 [ 3: 0] cong_protocol: CongProtocol,
            /// Selects the parameters, big endian: bits of [`reaction_field`] or [`notification_field`].
            0x00c         field_select: [u8; 0x4],
            0x020         congestion_parameters: [u8; 0x100],
        }
        out CmdOut

    0x826 QueryCongStatistics
        in QueryCongStatisticsIn: 0x10 { 0x008 [31:31] clear: bool }
        out QueryCongStatisticsOut: 0x110 {
            0x010 [31: 0] rp_cur_flows: u32,
            0x014 [31: 0] sum_flows: u32,
            0x018 [31: 0] rp_cnp_ignored_high: u32,
            0x01c [31: 0] rp_cnp_ignored_low: u32,
            0x020 [31: 0] rp_cnp_handled_high: u32,
            0x024 [31: 0] rp_cnp_handled_low: u32,
            0x048 [31: 0] time_stamp_high: u32,
            0x04c [31: 0] time_stamp_low: u32,
            0x050 [31: 0] accumulators_period: u32,
            0x054 [31: 0] np_ecn_marked_roce_packets_high: u32,
            0x058 [31: 0] np_ecn_marked_roce_packets_low: u32,
            0x05c [31: 0] np_cnp_sent_high: u32,
            0x060 [31: 0] np_cnp_sent_low: u32,
        }
}

/// Bits of `field_select` for a reaction point. They come from the driver's `cong.c`, since the header has
/// none.
pub mod reaction_field {
    #![allow(missing_docs)]
    pub const CLAMP_TGT_RATE: u32 = 1;
    pub const CLAMP_TGT_RATE_AFTER_TIME_INC: u32 = 2;
    pub const RPG_TIME_RESET: u32 = 3;
    pub const RPG_BYTE_RESET: u32 = 4;
    pub const RPG_THRESHOLD: u32 = 5;
    pub const RPG_MAX_RATE: u32 = 6;
    pub const RPG_AI_RATE: u32 = 7;
    pub const RPG_HAI_RATE: u32 = 8;
    pub const RPG_MIN_DEC_FAC: u32 = 9;
    pub const RPG_MIN_RATE: u32 = 10;
    pub const RATE_TO_SET_ON_FIRST_CNP: u32 = 11;
    pub const DCE_TCP_G: u32 = 12;
    pub const DCE_TCP_RTT: u32 = 13;
    pub const RATE_REDUCE_MONITOR_PERIOD: u32 = 14;
    pub const INITIAL_ALPHA_VALUE: u32 = 15;
    pub const RPG_GD: u32 = 16;
}

/// Bits of `field_select` for a notification point, from the same source.
pub mod notification_field {
    #![allow(missing_docs)]
    pub const MIN_TIME_BETWEEN_CNPS: u32 = 2;
    pub const CNP_DSCP: u32 = 3;
    /// Mode and priority.
    pub const CNP_PRIO_MODE: u32 = 4;
}
