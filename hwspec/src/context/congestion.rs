//! Parameters of congestion control (DCQCN), for each end that has some.
use crate::hw_layout;

hw_layout! {
    /// Protocol and role that the congestion control parameters belong to (`cong_protocol`).
    pub enum CongProtocol: u8, 4 bits {
        Ieee8021Qau = 0,
        /// The reaction point of RoCE: the sender that slows down.
        RoceRp = 1,
        /// The notification point of RoCE: the receiver of marked packets.
        RoceNp = 2,
        RoceGeneral = 3,
    }

    /// Parameters of a reaction point. Rates are in Mb/s, times in us.
    pub struct RoceReactionPoint: 0x100 {
        0x00c [27:27] clamp_tgt_rate: bool,
        0x00c [23:23] clamp_tgt_rate_after_time_inc: bool,
        0x014 [31: 0] rpg_time_reset: u32,
        /// In bytes.
        0x018 [31: 0] rpg_byte_reset: u32,
        0x01c [31: 0] rpg_threshold: u32,
        /// 0: the port's rate.
        0x020 [31: 0] rpg_max_rate: u32,
        0x024 [31: 0] rpg_ai_rate: u32,
        0x028 [31: 0] rpg_hai_rate: u32,
        /// A cut reduces the rate by the fraction alpha / 2^this; alpha is at most 1023.
        0x02c [31: 0] rpg_gd: u32,
        /// Minimum share of the rate left by a cut, in percent.
        0x030 [31: 0] rpg_min_dec_fac: u32,
        0x034 [31: 0] rpg_min_rate: u32,
        /// 0: the port's rate.
        0x054 [31: 0] rate_to_set_on_first_cnp: u32,
        /// In units of 1/1024.
        0x058 [31: 0] dce_tcp_g: u32,
        0x05c [31: 0] dce_tcp_rtt: u32,
        0x060 [31: 0] rate_reduce_monitor_period: u32,
        /// In units of 1/1024.
        0x068 [31: 0] initial_alpha_value: u32,
    }

    /// Parameters of a notification point.
    pub struct RoceNotificationPoint: 0x100 {
        /// In us.
        0x014 [31: 0] min_time_between_cnps: u32,
        0x018 [13: 8] cnp_dscp: u8,
        /// 0: CNPs in a VLAN have priority `cnp_802p_prio`; 1: the priority of their queue pair.
        0x018 [ 3: 3] cnp_prio_mode: bool,
        0x018 [ 2: 0] cnp_802p_prio: u8,
    }
}
