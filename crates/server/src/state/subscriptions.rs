//! The registry of subscriptions, and the subscriptions of one connection.
//!
//! ```text
//!   channel "news" ─▶ worker 0: [client 4, client 9]       shared lists: a publication keeps the list of its moment,
//!                     worker 2: [client 7]                 a later (un)subscription copies the list if it must
//! ```
//!
//! A connection's own set (in its `ClientState`) and the registry change together, on the thread that executes the
//! command or closes the connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::clients::ClientInfo;
use super::messages::{
    Delivery, Message, Publication, QUEUED_BYTES_MAX, Receiver, SubscriptionKind, Target,
    TargetKind,
};
use crate::glob::{LetterCase, matches};
use crate::lock::lock;

/// The subscribers of a channel or pattern. At least one.
#[derive(Clone)]
struct Topic {
    name: Arc<[u8]>,
    /// Workers that have subscribers, with these.
    by_worker: Vec<(usize, Arc<Vec<Receiver>>)>,
}

impl Topic {
    fn new(name: Arc<[u8]>) -> Topic {
        let by_worker = Vec::new();
        Topic { name, by_worker }
    }

    /// Number of subscribers.
    fn len(&self) -> usize {
        self.by_worker.iter().map(|(_, list)| list.len()).sum()
    }

    fn add(&mut self, worker: usize, receiver: Receiver) {
        let place = self.by_worker.iter().position(|(at, _)| *at == worker);
        let place = place.unwrap_or_else(|| {
            self.by_worker.push((worker, Arc::default()));
            self.by_worker.len() - 1
        });
        let list = &mut self.by_worker[place].1;
        if let Err(at) = list.binary_search_by_key(&receiver.id, |receiver| receiver.id) {
            Arc::make_mut(list).insert(at, receiver);
        }
    }

    fn remove(&mut self, worker: usize, id: u64) {
        let Some(place) = self.by_worker.iter().position(|(at, _)| *at == worker) else {
            return;
        };
        let list = &mut self.by_worker[place].1;
        if let Ok(at) = list.binary_search_by_key(&id, |receiver| receiver.id) {
            Arc::make_mut(list).remove(at);
        }
        if list.is_empty() {
            self.by_worker.swap_remove(place);
        }
    }
}

/// Patterns in any order, and where each is.
#[derive(Default)]
struct Patterns {
    /// Shared, so that a publication matches them without the registry's lock.
    topics: Arc<Vec<Arc<Topic>>>,
    places: HashMap<Arc<[u8]>, usize>,
}

impl Patterns {
    fn add(&mut self, name: &Arc<[u8]>, worker: usize, receiver: Receiver) {
        let topics = Arc::make_mut(&mut self.topics);
        let place = *self.places.entry(Arc::clone(name)).or_insert_with(|| {
            topics.push(Arc::new(Topic::new(Arc::clone(name))));
            topics.len() - 1
        });
        Arc::make_mut(&mut topics[place]).add(worker, receiver);
    }

    fn remove(&mut self, name: &[u8], worker: usize, id: u64) {
        let Some(&place) = self.places.get(name) else {
            return;
        };
        let topics = Arc::make_mut(&mut self.topics);
        let topic = Arc::make_mut(&mut topics[place]);
        topic.remove(worker, id);
        if topic.by_worker.is_empty() {
            self.places.remove(name);
            topics.swap_remove(place);
            if let Some(moved) = topics.get(place) {
                self.places.insert(Arc::clone(&moved.name), place);
            }
        }
    }
}

#[derive(Default)]
struct Topics {
    channels: HashMap<Arc<[u8]>, Topic>,
    shards: HashMap<Arc<[u8]>, Topic>,
    /// The clients that monitor, under the empty name.
    monitors: HashMap<Arc<[u8]>, Topic>,
    patterns: Patterns,
}

impl Topics {
    fn named(&self, kind: SubscriptionKind) -> &HashMap<Arc<[u8]>, Topic> {
        match kind {
            SubscriptionKind::Shard => &self.shards,
            SubscriptionKind::Monitor => &self.monitors,
            _ => &self.channels,
        }
    }

    fn named_mut(&mut self, kind: SubscriptionKind) -> &mut HashMap<Arc<[u8]>, Topic> {
        match kind {
            SubscriptionKind::Shard => &mut self.shards,
            SubscriptionKind::Monitor => &mut self.monitors,
            _ => &mut self.channels,
        }
    }

    fn len(&self) -> usize {
        self.channels.len() + self.shards.len() + self.patterns.topics.len()
    }
}

/// All subscriptions of a server.
#[derive(Default)]
pub(crate) struct Subscriptions {
    topics: Mutex<Topics>,
    /// Number of channels, shard channels and patterns with subscribers, for publishers.
    count: AtomicUsize,
    pattern_count: AtomicUsize,
    has_monitors: AtomicBool,
    /// Bytes of messages that are not written to output queues yet.
    queued_bytes: Arc<AtomicUsize>,
}

impl Subscriptions {
    /// Whether there are no subscriptions.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether a client monitors.
    #[inline]
    pub(crate) fn has_monitors(&self) -> bool {
        self.has_monitors.load(Ordering::Acquire)
    }

    /// The count of bytes of messages that are not written to output queues yet (SRV-PUB-4).
    pub(crate) fn queued_bytes(&self) -> &Arc<AtomicUsize> {
        &self.queued_bytes
    }

    /// Number of patterns with subscribers.
    pub(crate) fn patterns(&self) -> usize {
        self.pattern_count.load(Ordering::Acquire)
    }

    /// Number of channels or shard channels with subscribers.
    pub(crate) fn channels(&self, kind: SubscriptionKind) -> usize {
        lock(&self.topics).named(kind).len()
    }

    /// The channels or shard channels with subscribers that `wanted` selects.
    pub(crate) fn channel_names(
        &self,
        kind: SubscriptionKind,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Vec<Arc<[u8]>> {
        let names: Vec<_> = lock(&self.topics).named(kind).keys().cloned().collect();
        names.into_iter().filter(|name| wanted(name)).collect()
    }

    /// Number of subscribers of a channel or shard channel.
    pub(crate) fn subscribers(&self, kind: SubscriptionKind, name: &[u8]) -> usize {
        lock(&self.topics)
            .named(kind)
            .get(name)
            .map_or(0, Topic::len)
    }

    /// Whether publishers must wait (SRV-PUB-4).
    pub(crate) fn is_full(&self) -> bool {
        self.queued_bytes.load(Ordering::Relaxed) > QUEUED_BYTES_MAX
    }

    /// Registers a subscription of a client.
    pub(crate) fn add(&self, client_info: &ClientInfo, kind: SubscriptionKind, name: &Arc<[u8]>) {
        let worker = client_info.worker;
        let receiver = Receiver {
            id: client_info.id,
            slot: client_info.slot.load(Ordering::Relaxed),
        };
        let mut topics = lock(&self.topics);
        match kind {
            SubscriptionKind::Pattern => topics.patterns.add(name, worker, receiver),
            _ => topics
                .named_mut(kind)
                .entry(Arc::clone(name))
                .or_insert_with(|| Topic::new(Arc::clone(name)))
                .add(worker, receiver),
        }
        self.publish_counts(&topics);
    }

    /// Removes a subscription of a client.
    pub(crate) fn remove(&self, client_info: &ClientInfo, kind: SubscriptionKind, name: &[u8]) {
        let (worker, id) = (client_info.worker, client_info.id);
        let mut topics = lock(&self.topics);
        if kind == SubscriptionKind::Pattern {
            topics.patterns.remove(name, worker, id);
        } else if let Some(topic) = topics.named_mut(kind).get_mut(name) {
            topic.remove(worker, id);
            if topic.by_worker.is_empty() {
                topics.named_mut(kind).remove(name);
            }
        }
        self.publish_counts(&topics);
    }

    fn publish_counts(&self, topics: &Topics) {
        let patterns = topics.patterns.topics.len();
        self.pattern_count.store(patterns, Ordering::Release);
        self.count.store(topics.len(), Ordering::Release);
        let has_monitors = !topics.monitors.is_empty();
        self.has_monitors.store(has_monitors, Ordering::Release);
    }

    /// Returns the message `text` to a channel or shard channel with its receivers; `None` if there are none.
    #[inline]
    pub(crate) fn publish(
        &self,
        kind: SubscriptionKind,
        channel: &[u8],
        text: &[u8],
    ) -> Option<Publication> {
        if self.is_empty() {
            return None;
        }
        self.route(kind, channel, text)
    }

    /// Returns a line of MONITOR with its receivers; `None` if no client monitors.
    pub(crate) fn publish_line(&self, text: &[u8]) -> Option<Publication> {
        self.route(SubscriptionKind::Monitor, b"", text)
    }

    #[cold]
    fn route(&self, kind: SubscriptionKind, channel: &[u8], text: &[u8]) -> Option<Publication> {
        let topics = lock(&self.topics);
        let named = topics.named(kind).get(channel).cloned();
        let patterns = match kind {
            SubscriptionKind::Shard | SubscriptionKind::Monitor => Arc::default(),
            _ => Arc::clone(&topics.patterns.topics),
        };
        drop(topics);
        let fits = |topic: &&Arc<Topic>| matches(&topic.name, channel, LetterCase::Exact);
        let matching = patterns.iter().filter(fits);
        let found = named.iter().map(|topic| (kind, topic));
        let found = found.chain(matching.map(|topic| (SubscriptionKind::Pattern, &**topic)));
        let mut publication = Publication::default();
        let mut message = None;
        for (kind, topic) in found {
            for (worker, receivers) in &topic.by_worker {
                let target = Target {
                    kind: TargetKind::Subscription(kind),
                    name: Arc::clone(&topic.name),
                    receivers: Arc::clone(receivers),
                };
                publication.receivers += receivers.len();
                let deliveries = &mut publication.deliveries;
                if let Some((_, delivery)) = deliveries.iter_mut().find(|(at, _)| at == worker) {
                    delivery.targets.push(target);
                    continue;
                }
                let message = message.get_or_insert_with(|| {
                    Arc::new(match kind {
                        SubscriptionKind::Monitor => Message::line(text, &self.queued_bytes),
                        _ => Message::new(channel, text, &self.queued_bytes),
                    })
                });
                let delivery = Delivery {
                    message: Arc::clone(message),
                    targets: vec![target],
                    except: None,
                };
                deliveries.push((*worker, delivery));
            }
        }
        message.is_some().then_some(publication)
    }
}

/// The subscriptions of one connection.
#[derive(Default)]
pub(crate) struct ClientSubscriptions {
    /// Names, with numbers that order them by the time of the subscription.
    channels: HashMap<Arc<[u8]>, u64>,
    patterns: HashMap<Arc<[u8]>, u64>,
    shards: HashMap<Arc<[u8]>, u64>,
    /// The empty name, if the client monitors.
    monitors: HashMap<Arc<[u8]>, u64>,
    next: u64,
    name_bytes: usize,
}

impl ClientSubscriptions {
    fn of(&self, kind: SubscriptionKind) -> &HashMap<Arc<[u8]>, u64> {
        match kind {
            SubscriptionKind::Channel => &self.channels,
            SubscriptionKind::Pattern => &self.patterns,
            SubscriptionKind::Shard => &self.shards,
            SubscriptionKind::Monitor => &self.monitors,
        }
    }

    fn of_mut(&mut self, kind: SubscriptionKind) -> &mut HashMap<Arc<[u8]>, u64> {
        match kind {
            SubscriptionKind::Channel => &mut self.channels,
            SubscriptionKind::Pattern => &mut self.patterns,
            SubscriptionKind::Shard => &mut self.shards,
            SubscriptionKind::Monitor => &mut self.monitors,
        }
    }

    /// Number of subscriptions of this kind.
    pub(crate) fn len(&self, kind: SubscriptionKind) -> usize {
        self.of(kind).len()
    }

    /// Number of all subscriptions.
    pub(crate) fn total(&self) -> usize {
        self.channels.len() + self.patterns.len() + self.shards.len() + self.monitors.len()
    }

    /// Whether the connection has this subscription.
    pub(crate) fn contains(&self, kind: SubscriptionKind, name: &[u8]) -> bool {
        self.of(kind).contains_key(name)
    }

    /// Adds a subscription. Returns its name if it is new.
    pub(crate) fn insert(&mut self, kind: SubscriptionKind, name: &[u8]) -> Option<Arc<[u8]>> {
        if self.contains(kind, name) {
            return None;
        }
        let name: Arc<[u8]> = Arc::from(name);
        let number = self.next;
        self.next += 1;
        self.name_bytes += name.len();
        self.of_mut(kind).insert(Arc::clone(&name), number);
        Some(name)
    }

    /// Removes a subscription. Returns whether there was one.
    pub(crate) fn remove(&mut self, kind: SubscriptionKind, name: &[u8]) -> bool {
        let had = self.of_mut(kind).remove(name).is_some();
        if had {
            self.name_bytes -= name.len();
        }
        had
    }

    /// The names of a kind, oldest subscription first.
    pub(crate) fn names(&self, kind: SubscriptionKind) -> Vec<Arc<[u8]>> {
        let mut names: Vec<_> = self.of(kind).iter().collect();
        names.sort_unstable_by_key(|(_, number)| **number);
        names
            .into_iter()
            .map(|(name, _)| Arc::clone(name))
            .collect()
    }

    /// Removes up to `most` subscriptions, and returns them.
    pub(crate) fn drain(&mut self, most: usize) -> Vec<(SubscriptionKind, Arc<[u8]>)> {
        let mut taken = Vec::new();
        for kind in SubscriptionKind::ALL {
            let left = most - taken.len();
            let names: Vec<_> = self.of(kind).keys().take(left).cloned().collect();
            for name in names {
                self.remove(kind, &name);
                taken.push((kind, name));
            }
        }
        taken
    }

    /// Bytes of memory that the subscriptions use, here and in the registry.
    pub(crate) fn bytes(&self) -> usize {
        /// Bytes of the entries in both hash tables and of the lists, with the allocator's overhead.
        const ENTRY_BYTES: usize = 320;
        self.name_bytes + self.total() * ENTRY_BYTES
    }
}
