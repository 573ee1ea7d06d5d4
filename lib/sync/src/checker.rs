//! The model checker, as far as the models of this crate agree about it.

/// A checker of every order with up to `preemptions`, or as many as IRONVERBS_PREEMPTIONS says if those are fewer.
pub(crate) fn up_to(preemptions: usize) -> loom::model::Builder {
    let at_most = std::env::var("IRONVERBS_PREEMPTIONS").ok().and_then(|text| text.parse().ok());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions.min(at_most.unwrap_or(preemptions)));
    builder
}
