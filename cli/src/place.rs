//! The node of a command that makes one where there is none.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use node::{Node, NodeError, NodeOptions};

/// The node in `dir`. One that another version left behind, with no program on it any more, gives way to a new one. A
/// directory that was not there before is gone again if there is to be no node in it.
pub fn open(dir: &Path, options: &NodeOptions) -> Result<Arc<Node>, NodeError> {
    let was_there = dir.exists();
    let node = match Node::open_or_create(dir, options) {
        Err(NodeError::Version { .. }) => {
            Node::reset(dir, false)?;
            Node::open_or_create(dir, options)
        }
        other => other,
    };
    node.inspect_err(|_| {
        if !was_there && !dir.join("adapter").exists() {
            let _ = fs::remove_file(dir.join("parties"));
            // Fails, as it should, where somebody else has put something.
            let _ = fs::remove_dir(dir);
        }
    })
}
