//! Opens the adapter beside one that is in use.

use super::{Other, User, change};
use crate::{data, node::Node};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, atomic::Ordering::*},
};

impl Node {
    /// Counts a function of this adapter as open. The first one opens the adapter beside this one, if a link has joined them and this
    /// process may open it.
    pub(crate) fn begin_use(self: &Arc<Self>) -> User {
        // Before `change`, so that other threads do not wait while another program holds the lock of that adapter.
        let opened = if self.core.beside().is_some() { None } else { self.open_beside() };
        let changes = change();
        self.core.beside.users.fetch_add(1, Relaxed);
        let gone = match opened {
            Some(other) if self.core.beside().is_none() && !other.core.beside.is_set() => {
                other.core.beside.set(Some(self.as_other()));
                let before = self.core.beside.set(Some(other));
                // A link has joined another adapter since.
                let back = before.as_ref().and_then(|before| before.core.beside.set(None));
                (before, back)
            }
            opened => (opened, None),
        };
        drop(changes);
        drop(gone);
        User(self.core.clone())
    }

    fn as_other(self: &Arc<Self>) -> Other {
        Other { core: self.core.clone(), _node: self.clone() }
    }

    fn open_beside(&self) -> Option<Other> {
        let (id, dir) = self.core.map.header().beside.read()?;
        // Any program that can write to this adapter's file may have written these words. So only an adapter is opened that the same users
        // can write to, and that names this one.
        if data::id(&dir.join("adapter")) != Some(id) || !has_same_users(&self.core.dir, &dir) {
            return None;
        }
        let other = Self::open(&dir).ok()?;
        if !self.core.is_joined(&other.core) {
            return None;
        }
        other.core.make_room_for_frames().ok()?;
        // Its thread resumes the work that a call leaves.
        other.park().ok()?;
        other.core.meet();
        Some(other.as_other())
    }
}

/// True if two directories have the same owner, group and mode.
fn has_same_users(a: &Path, b: &Path) -> bool {
    let users = |dir| fs::symlink_metadata(dir).ok().map(|meta| (meta.uid(), meta.gid(), meta.mode()));
    users(a).is_some_and(|of_a| users(b) == Some(of_a))
}
