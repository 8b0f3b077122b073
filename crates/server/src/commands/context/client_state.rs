//! State of a connection that speaks RESP.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::command_table::CommandTable;
use super::transaction::{TransactionQueue, WatchedKeys};
use crate::lock::lock;
use crate::protocol::resp::RespVersion;
use crate::state::clients::ClientInfo;
use crate::state::messages::{SubscriptionKind, Target, TargetKind};
use crate::state::subscriptions::ClientSubscriptions;
use crate::state::tracking::{Tracking, is_tracking};
use crate::state::users::{ClientUser, User, UserChange, UserRegistry};

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

/// Bytes of memory that a tracked prefix uses besides its text, here and in the registry.
const PREFIX_BYTES: usize = 160;

/// RESP state of a connection.
pub(crate) struct ClientState {
    pub(in crate::commands) client_info: Arc<ClientInfo>,
    pub(in crate::commands) db: u8,
    pub(in crate::commands) resp: RespVersion,
    pub(in crate::commands) replies: ReplyMode,
    pub(in crate::commands) transaction: ClientTransaction,
    pub(in crate::commands) subscriptions: Option<Box<ClientSubscriptions>>,
    pub(in crate::commands) caching: ClientCaching,
    pub(in crate::commands) last_command: &'static str,
    shown_command: &'static str,
    /// The user of the connection.
    pub(in crate::commands) user: ClientUser,
    /// The connection is closed once its replies are sent.
    pub(in crate::commands) leaving: bool,
    /// All commands, for commands about commands.
    pub(in crate::commands) table: &'static CommandTable,
}

/// MULTI and WATCH of a client.
#[derive(Default)]
pub(in crate::commands) struct ClientTransaction {
    pub(in crate::commands) queue: Option<Box<TransactionQueue>>,
    /// Requests of the transaction that EXEC is executing.
    pub(in crate::commands) executing: Option<usize>,
    pub(in crate::commands) watched: Box<WatchedKeys>,
}

/// The client-side caching of a client (CLIENT TRACKING).
#[derive(Default)]
pub(in crate::commands) struct ClientCaching {
    /// It tracks the keys that it reads (without BCAST).
    pub(in crate::commands) tracks_reads: bool,
    /// It has tracked keys at some time, so it may still be registered for some.
    pub(in crate::commands) has_tracked: bool,
    /// The prefixes that it tracks (BCAST).
    pub(in crate::commands) prefixes: BTreeSet<Arc<[u8]>>,
    /// The keys that the running script has declared, if the client tracks what it reads.
    pub(in crate::commands) script_keys: Vec<Box<[u8]>>,
    /// Invalidations of its own changes that follow the reply to the executing request; `None` is that of all keys.
    pub(in crate::commands) own_invalidations: Vec<Option<Box<[u8]>>>,
}

impl ClientState {
    pub(crate) fn new(
        client_info: Arc<ClientInfo>,
        table: &'static CommandTable,
        users: &UserRegistry,
    ) -> ClientState {
        ClientState {
            client_info,
            shown_command: "NULL",
            db: 0,
            resp: RespVersion::V2,
            replies: ReplyMode::On,
            transaction: ClientTransaction::default(),
            subscriptions: None,
            caching: ClientCaching::default(),
            last_command: "NULL",
            user: ClientUser::new(users),
            leaving: false,
            table,
        }
    }

    /// The id of the connection.
    pub(in crate::commands) fn id(&self) -> u64 {
        self.client_info.id
    }

    /// Makes `user`, which has authenticated, the user of the connection.
    pub(in crate::commands) fn authenticate(&mut self, user: Arc<User>) {
        self.user.authenticate(user);
        self.show_user();
    }

    /// Makes `default` the user of the connection, as of a new one.
    pub(in crate::commands) fn reset_user(&mut self, users: &UserRegistry) {
        self.user = ClientUser::new(users);
        self.show_user();
    }

    /// Publishes the name of the user.
    fn show_user(&self) {
        let name = Arc::clone(&self.user.user().name);
        lock(&self.client_info.labels).user = name;
    }

    /// Follows changes of users. Returns whether the connection may go on: its user was not removed, and may receive
    /// everything that the connection has subscribed to.
    #[inline]
    pub(crate) fn follow_users(&mut self, users: &UserRegistry) -> bool {
        match self.user.follow(users) {
            UserChange::None => true,
            UserChange::FewerChannels => self.may_keep_subscriptions(),
            UserChange::Removed => {
                self.show_user();
                false
            }
        }
    }

    #[cold]
    fn may_keep_subscriptions(&self) -> bool {
        let own = self.subscriptions.as_ref();
        [
            SubscriptionKind::Channel,
            SubscriptionKind::Pattern,
            SubscriptionKind::Shard,
        ]
        .into_iter()
        .all(|kind| {
            let is_pattern = kind == SubscriptionKind::Pattern;
            let names = own.map_or_else(Vec::new, |own| own.names(kind));
            let user = self.user.user();
            names
                .iter()
                .all(|name| user.allows_channel(name, is_pattern))
        })
    }

    /// Ends the client-side caching of the client.
    pub(crate) fn end_tracking(&mut self, tracking: &Tracking) {
        if is_tracking(&self.client_info) {
            tracking.disable(&self.client_info, self.caching.prefixes.iter());
        }
        self.caching.tracks_reads = false;
        self.caching.prefixes.clear();
    }

    /// Whether the client receives messages: it has a subscription, or tracks keys.
    #[inline]
    pub(crate) fn receives_messages(&self) -> bool {
        self.is_subscribed() || is_tracking(&self.client_info)
    }

    /// Bytes of memory that queued requests, watched keys, subscriptions and prefixes use.
    pub(crate) fn memory_bytes(&self) -> usize {
        let subscriptions = self.subscriptions.as_ref();
        self.transaction
            .queue
            .as_ref()
            .map_or(0, |queue| queue.bytes())
            + self.transaction.watched.bytes()
            + subscriptions.map_or(0, |own| own.bytes())
            + self
                .caching
                .prefixes
                .iter()
                .map(|prefix| prefix.len() + PREFIX_BYTES)
                .sum::<usize>()
    }

    /// Whether the client has a subscription.
    #[inline]
    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscriptions
            .as_ref()
            .is_some_and(|own| own.total() > 0)
    }

    /// Whether the client monitors.
    pub(in crate::commands) fn is_monitor(&self) -> bool {
        let own = self.subscriptions.as_ref();
        own.is_some_and(|own| own.len(SubscriptionKind::Monitor) > 0)
    }

    /// Whether the client still receives messages for `target`.
    pub(crate) fn receives(&self, target: &Target) -> bool {
        let own = self.subscriptions.as_ref();
        match target.kind {
            TargetKind::Subscription(kind) => {
                own.is_some_and(|own| own.contains(kind, &target.name))
            }
            _ if self.resp == RespVersion::V3 => true,
            // As in Redis, a subscription to any channel suffices.
            TargetKind::Redirected => self.has_subscriptions(),
            TargetKind::Invalidation | TargetKind::BrokenRedirect => false,
        }
    }

    /// Whether the client is subscribed to a channel or pattern.
    pub(in crate::commands) fn has_subscriptions(&self) -> bool {
        let own = self.subscriptions.as_ref();
        own.is_some_and(|own| own.total() > own.len(SubscriptionKind::Monitor))
    }

    /// Version of the client's protocol.
    pub(crate) fn resp(&self) -> RespVersion {
        self.resp
    }

    /// Removes the subscriptions of a client that is being closed.
    pub(crate) fn take_subscriptions(&mut self) -> Option<Box<ClientSubscriptions>> {
        self.subscriptions.take()
    }

    /// Publishes whether the client has subscriptions, after a change. The limit of its output depends on it.
    pub(in crate::commands) fn note_subscribed(&self) {
        let is_subscribed = self.is_subscribed();
        let shown = &self.client_info.is_subscribed;
        shown.store(is_subscribed, Ordering::Relaxed);
        let shown = &self.client_info.is_monitor;
        shown.store(self.is_monitor(), Ordering::Relaxed);
    }

    /// Publishes the state in the connection's [`ClientInfo`], for other threads.
    pub(crate) fn show(&mut self) {
        let client_info = &self.client_info;
        client_info.db.store(self.db, Ordering::Relaxed);
        client_info
            .resp
            .store(self.resp.number() as u8, Ordering::Relaxed);
        let queued = self.transaction.queue.as_ref().map(|queue| queue.len());
        let queued = queued
            .or(self.transaction.executing)
            .map_or(-1, |len| i32::try_from(len).unwrap_or(i32::MAX));
        client_info.multi.store(queued, Ordering::Relaxed);
        client_info
            .watching
            .store(self.transaction.watched.len(), Ordering::Relaxed);
        for (shown, kind) in [
            (&client_info.channels, SubscriptionKind::Channel),
            (&client_info.patterns, SubscriptionKind::Pattern),
            (&client_info.shards, SubscriptionKind::Shard),
        ] {
            let own = self.subscriptions.as_ref();
            shown.store(own.map_or(0, |own| own.len(kind)), Ordering::Relaxed);
        }
        let queue_bytes = self
            .transaction
            .queue
            .as_ref()
            .map_or(0, |queue| queue.bytes());
        client_info
            .queue_bytes
            .store(queue_bytes, Ordering::Relaxed);
        let watch_bytes = self.transaction.watched.bytes();
        client_info
            .watch_bytes
            .store(watch_bytes, Ordering::Relaxed);
        if self.shown_command != self.last_command {
            lock(&client_info.labels).command = self.last_command;
            self.shown_command = self.last_command;
        }
    }
}
