//! Bring-up, teardown and identity of a function (PRM: initialization and teardown).

use super::{
    call::Call,
    nic_vport, page_requests, pages,
    refusal::{Done, Syndrome},
};
use crate::translate::{NULL_KEY, RESERVED_LKEY};
use crate::{mlx5::eswitch, state::HcaState};
use hwspec::cmd::{adapter::*, adapter_id::*};

/// Supported interface step sequences: 0 and 1.
const ISSI_SUPPORTED: u32 = 0b11;
/// IEEE vendor ID (OUI) returned by `QUERY_ADAPTER`.
const IEEE_VENDOR: u32 = 0x02c9;
/// Parameter set ID (PSID), unlike that of any real card.
const BOARD: &[u8; 16] = b"IRONVERBS0000001";

/// True if the command is about the caller. The PF also enables its VFs before they are present, which needs no action, since a VF brings
/// itself up.
fn is_self(call: &Call<'_, '_, '_>, function_id: u16) -> Done<bool> {
    let manages = call.func.fid() == 0 && function_id < call.func.region().functions().into();
    Syndrome::FunctionId.unless(function_id == 0 || manages)?;
    Ok(function_id == 0)
}

pub(super) fn enable(call: &mut Call<'_, '_, '_>) -> Done {
    let input: EnableHcaIn = call.input()?;
    if is_self(call, input.function_id())? {
        Syndrome::HcaState.unless(call.func.function().hca_state == HcaState::Reset.raw())?;
        *call.func.function_mut(|f| &mut f.hca_state) = HcaState::Enabled.raw();
        pages::ask(call.func, call.step.config);
        eswitch::take_over(call.func, call.step.config);
    } else if call.step.config.strict.pages {
        page_requests::vf_changed(call.func, input.function_id(), true);
    }
    Ok(())
}

pub(super) fn disable(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DisableHcaIn = call.input()?;
    if is_self(call, input.function_id())? {
        Syndrome::HcaState.unless(call.func.function().hca_state == HcaState::Enabled.raw())?;
        *call.func.function_mut(|f| &mut f.hca_state) = HcaState::Reset.raw();
        *call.func.function_mut(|f| &mut f.issi) = 0;
        *call.func.function_mut(|f| &mut f.caps_set) = [0; 16];
        pages::forget(call.func);
        call.quiesce = true;
    } else if call.step.config.strict.pages {
        page_requests::vf_changed(call.func, input.function_id(), false);
    }
    Ok(())
}

pub(super) fn init(call: &mut Call<'_, '_, '_>) -> Done {
    // The owner's identity after the header is meant for shared cards; older drivers omit it.
    Syndrome::PagesMissing.unless(call.func.function().pages_wanted.iter().all(|n| *n <= 0))?;
    *call.func.function_mut(|f| &mut f.hca_state) = HcaState::Running.raw();
    Ok(())
}

pub(super) fn teardown(call: &mut Call<'_, '_, '_>) -> Done {
    let input: TeardownHcaIn = call.input()?;
    // 0 graceful, 1 forced; fast teardown (2) is not supported.
    Syndrome::Teardown.unless(input.profile() <= 1)?;
    call.answer(&TeardownHcaOut::zeroed())?;
    super::end_objects(call.func, call.step.host, |_| true);
    nic_vport::forget_lists(call);
    *call.func.function_mut(|f| &mut f.hca_state) = HcaState::Enabled.raw();
    *call.func.function_mut(|f| &mut f.roce_enabled) = 0;
    page_requests::forget(call.func);
    call.quiesce = true;
    Ok(())
}

pub(super) fn query_issi(call: &mut Call<'_, '_, '_>) -> Done {
    let mut out = QueryIssiOut::zeroed();
    out.set().current_issi(call.func.function().issi as u16).supported_issi_dw0(ISSI_SUPPORTED);
    call.answer(&out)
}

pub(super) fn set_issi(call: &mut Call<'_, '_, '_>) -> Done {
    let input: SetIssiIn = call.input()?;
    let issi = u32::from(input.current_issi());
    Syndrome::Issi.unless(issi < 32 && ISSI_SUPPORTED & 1 << issi != 0)?;
    *call.func.function_mut(|f| &mut f.issi) = issi;
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let mut params = AdapterParams::zeroed();
    params.set().ieee_vendor_id(IEEE_VENDOR).vsd_vendor_id(hwspec::pcie::VENDOR_ID).vsd_contd_psid(*BOARD);
    call.answer(&QueryAdapterOut::with(|s| s.query_adapter_struct(params)))
}

pub(super) fn driver_version(call: &mut Call<'_, '_, '_>) -> Done {
    let input: SetDriverVersionIn = call.input()?;
    let version = input.driver_version();
    let end = version.iter().position(|b| *b == 0).unwrap_or(version.len());
    tracing::debug!(fid = call.func.fid(), driver = %String::from_utf8_lossy(&version[..end]), "driver version");
    Ok(())
}

pub(super) fn nop(_: &mut Call<'_, '_, '_>) -> Done {
    Ok(())
}

pub(super) fn special_contexts(call: &mut Call<'_, '_, '_>) -> Done {
    call.answer(&QuerySpecialContextsOut::with(|s| s.resd_lkey(RESERVED_LKEY).null_mkey(NULL_KEY)))
}
