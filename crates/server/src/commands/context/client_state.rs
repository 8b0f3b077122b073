//! State of a connection that speaks RESP.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::command_table::CommandTable;
use super::transaction::{TransactionQueue, WatchedKeys};
use crate::lock::lock;
use crate::protocol::resp::RespVersion;
use crate::state::clients::ClientInfo;

/// Which replies a client gets (CLIENT REPLY).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::commands) enum ReplyMode {
    #[default]
    On,
    Off,
    /// No reply to the CLIENT REPLY SKIP that is executing, nor to the next request.
    Skip,
    /// No reply to the request that is executing.
    SkipThis,
}

/// RESP state of a connection.
pub(crate) struct ClientState {
    pub(in crate::commands) id: u64,
    pub(in crate::commands) client_info: Arc<ClientInfo>,
    pub(in crate::commands) db: u8,
    pub(in crate::commands) resp: RespVersion,
    pub(in crate::commands) replies: ReplyMode,
    pub(in crate::commands) queue: Option<Box<TransactionQueue>>,
    /// Requests of the transaction that EXEC is executing.
    pub(in crate::commands) executing: Option<usize>,
    pub(in crate::commands) watched: Box<WatchedKeys>,
    pub(in crate::commands) last_command: &'static str,
    shown_command: &'static str,
    /// The connection is closed once its replies are sent.
    pub(in crate::commands) leaving: bool,
    /// All commands, for commands about commands.
    pub(in crate::commands) table: &'static CommandTable,
}

impl ClientState {
    pub(crate) fn new(client_info: Arc<ClientInfo>, table: &'static CommandTable) -> ClientState {
        ClientState {
            id: client_info.id,
            client_info,
            shown_command: "NULL",
            db: 0,
            resp: RespVersion::V2,
            replies: ReplyMode::On,
            queue: None,
            executing: None,
            watched: Box::default(),
            last_command: "NULL",
            leaving: false,
            table,
        }
    }

    /// Bytes of memory that queued requests and watched keys use.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.bytes()) + self.watched.bytes()
    }

    /// Publishes the state in the connection's [`ClientInfo`], for other threads.
    pub(crate) fn show(&mut self) {
        let client_info = &self.client_info;
        client_info.db.store(self.db, Ordering::Relaxed);
        client_info
            .resp
            .store(self.resp.number() as u8, Ordering::Relaxed);
        let queued = self.queue.as_ref().map(|queue| queue.len());
        let queued = queued
            .or(self.executing)
            .map_or(-1, |len| i32::try_from(len).unwrap_or(i32::MAX));
        client_info.multi.store(queued, Ordering::Relaxed);
        client_info
            .watching
            .store(self.watched.len(), Ordering::Relaxed);
        let queue_bytes = self.queue.as_ref().map_or(0, |queue| queue.bytes());
        client_info
            .queue_bytes
            .store(queue_bytes, Ordering::Relaxed);
        let watch_bytes = self.watched.bytes();
        client_info
            .watch_bytes
            .store(watch_bytes, Ordering::Relaxed);
        if self.shown_command != self.last_command {
            lock(&client_info.labels).command = self.last_command;
            self.shown_command = self.last_command;
        }
    }
}
