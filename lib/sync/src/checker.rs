//! Common settings of the model checker for this crate's models.

/// A checker of all orders with up to `preemptions` preemptions, or IRONVERBS_PREEMPTIONS if that is lower.
pub(crate) fn up_to(preemptions: usize) -> loom::model::Builder {
    let at_most = std::env::var("IRONVERBS_PREEMPTIONS").ok().and_then(|text| text.parse().ok());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions.min(at_most.unwrap_or(preemptions)));
    builder
}
