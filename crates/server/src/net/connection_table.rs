//! A worker's connections: its table of slots, and the lists of connections to visit.

use std::collections::{HashMap, VecDeque};

use super::connection::{Connection, Readiness};
use crate::protocol::resp::RespVersion;
use crate::state::messages::Target;

/// What the worker keeps about a connection that it has lent to the thread of long requests.
pub(super) struct LentState {
    /// Its client's id.
    pub(super) id: u64,
    /// What events have reported since.
    pub(super) readiness: Readiness,
    pub(super) is_killed: bool,
    /// Version of its protocol when it was lent.
    pub(super) resp: RespVersion,
    /// Messages for it, which its output queue gets when it returns.
    pub(super) messages: Vec<LentMessage>,
    pub(super) message_bytes: usize,
}

/// A published message for a lent connection.
pub(super) struct LentMessage {
    pub(super) target: Target,
    pub(super) resp: RespVersion,
    /// The message in this version of the protocol.
    pub(super) bytes: Vec<u8>,
}

/// Connections by slot. The token of a connection's socket is its slot.
#[derive(Default)]
pub(super) struct ConnectionTable {
    /// A slot is empty if it is free, or its connection is lent or being visited.
    slots: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    /// Slots of connections that are lent to the thread of long requests.
    pub(super) lent: HashMap<usize, LentState>,
}

impl ConnectionTable {
    /// Number of slots.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().flatten().map(Box::as_ref)
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Connection> {
        self.slots.get(slot)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        self.slots.get_mut(slot)?.as_deref_mut()
    }

    /// Removes the connection from its slot. The slot is not free.
    pub(super) fn take(&mut self, slot: usize) -> Option<Box<Connection>> {
        self.slots.get_mut(slot)?.take()
    }

    /// Returns an empty slot that is not free.
    pub(super) fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        })
    }

    /// Puts a connection into its empty slot.
    pub(super) fn put(&mut self, slot: usize, conn: Box<Connection>) {
        self.slots[slot] = Some(conn);
    }

    /// Makes an empty slot free.
    pub(super) fn free(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// Removes a connection that will be lent, and records that it is.
    pub(super) fn lend(&mut self, slot: usize) -> Option<Box<Connection>> {
        let mut conn = self.take(slot)?;
        conn.marks.listed = false;
        let away = LentState {
            id: conn.client_info.id,
            readiness: Readiness::default(),
            is_killed: false,
            resp: conn.resp(),
            messages: Vec::new(),
            message_bytes: 0,
        };
        self.lent.insert(slot, away);
        Some(conn)
    }

    /// The slot of the connection with this client id, unless it is lent.
    pub(super) fn slot_of(&self, id: u64) -> Option<usize> {
        let is = |conn: &Option<Box<Connection>>| {
            conn.as_ref().is_some_and(|conn| conn.client_info.id == id)
        };
        self.slots.iter().position(is)
    }
}

/// Slots of the connections to visit. A connection is on one list at most.
#[derive(Default)]
pub(super) struct VisitLists {
    /// Visited in the next loop iteration.
    pub(super) ready: VecDeque<usize>,
    /// Their last visit used its whole time slice, or they have more to send: one is visited per loop iteration.
    pub(super) slow: VecDeque<usize>,
    /// Their next request waits for free space in the store.
    pub(super) awaiting_room: VecDeque<usize>,
    /// CLIENT PAUSE holds their next request back.
    pub(super) paused: Vec<usize>,
}

impl VisitLists {
    /// Whether a connection can be visited at once.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.slow.is_empty()
    }

    /// Adds a connection to the list that its state selects, unless it is on one.
    pub(super) fn add(&mut self, slot: usize, conn: &mut Connection) {
        if conn.marks.listed {
            return;
        }
        conn.marks.listed = true;
        if conn.status.paused {
            return self.paused.push(slot);
        }
        let is_slow = conn.status.unfinished || conn.marks.is_slow;
        let list = match (conn.status.awaits_room, is_slow) {
            (true, _) => &mut self.awaiting_room,
            (false, true) => &mut self.slow,
            (false, false) => &mut self.ready,
        };
        list.push_back(slot);
    }
}
