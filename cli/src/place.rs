//! Opens the node of a command that creates it if it is missing.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use devmodel::region::RegionError;
use node::{Node, NodeError, NodeOptions};

/// Opens the node in `dir`. A node of another version without programs is replaced by a new one. If no node is created, a directory that
/// did not exist before is removed again.
pub fn open(dir: &Path, options: &NodeOptions) -> Result<Arc<Node>, NodeError> {
    let was_there = dir.exists();
    let node = match Node::open_or_create(dir, options) {
        Err(NodeError::Version { .. } | NodeError::Region(RegionError::Magic { .. })) => {
            Node::reset(dir, false)?;
            Node::open_or_create(dir, options)
        }
        other => other,
    };
    node.inspect_err(|_| {
        if !was_there && !dir.join("adapter").exists() {
            let _ = Node::reset(dir, false);
            // Fails on purpose if another process has put something there.
            let _ = fs::remove_dir(dir);
        }
    })
}
