//! The adapters of a command that uses several: those of one machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use devmodel::Config;
use node::{Node, NodeOptions, Observer};

use crate::place;

/// Opens the node in `first`, which is created with `options` if missing, and those in `others`, which are created like the first.
///
/// # Errors
/// One cannot be opened or created, or two have the same number: their functions would have the same MACs, GUIDs and addresses.
pub fn open(first: &Path, options: &NodeOptions, others: &[PathBuf]) -> Result<Vec<Arc<Node>>, String> {
    let mut nodes = vec![place::open(first, options).map_err(|e| e.to_string())?];
    for dir in others {
        let node = place::open(dir, &beside(&nodes, dir)).map_err(|e| e.to_string())?;
        if let Some(other) = nodes.iter().find(|other| number(other) == number(&node)) {
            return Err(format!(
                "expected adapters with numbers of their own, found {} for both {} and {}: adapter create --id",
                number(&node),
                other.dir().display(),
                node.dir().display()
            ));
        }
        nodes.push(node);
    }
    Ok(nodes)
}

fn number(node: &Node) -> u16 {
    node.adapter().config().node_id
}

/// The options for the node in `dir`. An existing node keeps its properties. A new one is created like the first of `nodes`, with its own
/// number, names and PCI bus.
fn beside(nodes: &[Arc<Node>], dir: &Path) -> NodeOptions {
    let (Some(first), true) = (nodes.first(), Observer::identity(dir).is_none()) else {
        return NodeOptions::default();
    };
    let naming = first.naming().behind(nodes.len());
    let node_id = nodes.iter().map(|node| number(node)).max().map_or(0, |last| last.wrapping_add(1));
    NodeOptions {
        config: Config { node_id, ..*first.adapter().config() },
        name: Some(naming.name),
        bus: Some(naming.bus),
        numa: naming.numa,
        ..NodeOptions::default()
    }
}
