//! Rows of the conformance table (`docs/conformance.md`) on two ends without an adapter, where these show more than the rows' tests on an
//! adapter (`tests/model/conformance/`) do: every order of PSNs, parts of an answer, the deadline of a timer. Tests are named after their
//! rows, and expected values are those of the table.

mod requester;
mod responder;
