//! Client-side caching: CLIENT TRACKING, CACHING, TRACKINGINFO, GETREDIR; which keys a request registers, and the
//! invalidations that its own client gets.
//!
//! `state::tracking` has the table, the invariants and their argument.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farbank_store::Key;

use super::context::CommandContext;
use super::context::client_state::ClientState;
use super::context::command_row::{Command, flag};
use super::error::{CommandError, NOT_INTEGER, SYNTAX};
use super::text;
use crate::exec_context::StoreAccess;
use crate::lock::lock;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::settings::size;
use crate::state::change_log::KeyEvent;
use crate::state::clients::ClientInfo;
use crate::state::messages::{Publication, TargetKind, append_invalidation};
use crate::state::tracking::{
    EvictedKey, flush_tail, is_caching, is_tracking, keys_tail, tracking_flag,
};

const ONE_REDIRECT: CommandError =
    CommandError::Fixed("ERR A client can only redirect to a single other client");
const NO_REDIRECT: CommandError =
    CommandError::Fixed("ERR The client ID you want redirect to does not exist");
const PREFIX_NEEDS_BCAST: CommandError =
    CommandError::Fixed("ERR PREFIX option requires BCAST mode to be enabled");
const SWITCHES_BCAST: CommandError = CommandError::Fixed(
    "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with \
     a different mode.",
);
const OPT_WITH_BCAST: CommandError =
    CommandError::Fixed("ERR OPTIN and OPTOUT are not compatible with BCAST");
const BOTH_OPTS: CommandError =
    CommandError::Fixed("ERR You can't specify both OPTIN mode and OPTOUT mode");
const SWITCHES_OPT: CommandError = CommandError::Fixed(
    "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with \
     a different mode.",
);
const NOT_TRACKING: CommandError = CommandError::Fixed(
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
);
const NOT_OPTIN: CommandError = CommandError::Fixed(
    "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
);
const NOT_OPTOUT: CommandError = CommandError::Fixed(
    "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
);

/// Options of CLIENT TRACKING.
#[derive(Default)]
struct TrackingOptions<'a> {
    flags: u8,
    redirect: i64,
    prefixes: Vec<&'a [u8]>,
}

fn parse_options<'a>(
    ctx: &CommandContext<'_>,
    args: Args<'a>,
) -> Result<TrackingOptions<'a>, CommandError> {
    let mut options = TrackingOptions::default();
    let mut at = 3;
    while let Some(option) = args.get(at) {
        match (text::option(option).as_slice(), args.get(at + 1)) {
            (b"redirect", Some(id)) => {
                if options.redirect != 0 {
                    return Err(ONE_REDIRECT);
                }
                options.redirect = parse_i64(id).ok_or(NOT_INTEGER)?;
                let id = u64::try_from(options.redirect).ok();
                if id.and_then(|id| ctx.shared.clients.get(id)).is_none() {
                    return Err(NO_REDIRECT);
                }
                at += 1;
            }
            (b"bcast", _) => options.flags |= tracking_flag::BCAST,
            (b"optin", _) => options.flags |= tracking_flag::OPTIN,
            (b"optout", _) => options.flags |= tracking_flag::OPTOUT,
            (b"noloop", _) => options.flags |= tracking_flag::NOLOOP,
            (b"prefix", Some(prefix)) => {
                options.prefixes.push(prefix);
                at += 1;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    Ok(options)
}

/// Checks whether options fit together, and fit the client's state `now`.
fn check_options(options: &TrackingOptions<'_>, now: u8) -> Result<(), CommandError> {
    let has = |flag| options.flags & flag != 0;
    let had = |flag| now & flag != 0;
    let (bcast, optin, optout) = (
        tracking_flag::BCAST,
        tracking_flag::OPTIN,
        tracking_flag::OPTOUT,
    );
    if !has(bcast) && !options.prefixes.is_empty() {
        return Err(PREFIX_NEEDS_BCAST);
    }
    if had(tracking_flag::ON) && had(bcast) != has(bcast) {
        return Err(SWITCHES_BCAST);
    }
    if has(bcast) && (has(optin) || has(optout)) {
        return Err(OPT_WITH_BCAST);
    }
    if has(optin) && has(optout) {
        return Err(BOTH_OPTS);
    }
    if has(optin) && had(optout) || has(optout) && had(optin) {
        return Err(SWITCHES_OPT);
    }
    Ok(())
}

/// Whether some key has both prefixes.
fn overlap(a: &[u8], b: &[u8]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// Position of the first of `prefixes` that overlaps with a later one.
fn first_overlap(prefixes: &[&[u8]]) -> Option<usize> {
    let mut sorted: Vec<_> = prefixes.iter().enumerate().collect();
    sorted.sort_by_key(|(at, prefix)| (**prefix, *at));
    // The prefixes of the current one, each with the lowest position among itself and those before it.
    let mut outer: Vec<(&[u8], usize)> = Vec::new();
    let mut first = None;
    for (at, prefix) in sorted {
        while outer
            .last()
            .is_some_and(|(last, _)| !prefix.starts_with(last))
        {
            outer.pop();
        }
        let lowest = outer.last().map_or(at, |(_, lowest)| at.min(*lowest));
        if !outer.is_empty() {
            first = Some(first.map_or(lowest, |first: usize| first.min(lowest)));
        }
        outer.push((prefix, lowest));
    }
    first
}

/// Whether a prefix overlaps with one of `own`, which do not overlap with each other.
fn overlaps_with(own: &BTreeSet<Arc<[u8]>>, prefix: &[u8]) -> bool {
    let bounds = (Bound::Included(prefix), Bound::Unbounded);
    let after = own.range::<[u8], _>(bounds).next();
    let bounds = (Bound::Unbounded, Bound::Excluded(prefix));
    let before = own.range::<[u8], _>(bounds).next_back();
    after.is_some_and(|own| own.starts_with(prefix))
        || before.is_some_and(|own| prefix.starts_with(own))
}

/// Refuses prefixes that overlap with each other or with those that the client tracks.
fn check_prefixes(client: &ClientState, prefixes: &[&[u8]]) -> Result<(), CommandError> {
    let fail = |prefix: &[u8], what: &str, other: &[u8]| {
        let text = [
            b"ERR Prefix '",
            text::quote(prefix, usize::MAX),
            b"' overlaps with ",
            what.as_bytes(),
            b" prefix '",
            text::quote(other, usize::MAX),
            b"'. Prefixes for a single client must not overlap.",
        ];
        Err(CommandError::Detailed(text.concat()))
    };
    let among = first_overlap(prefixes);
    for (at, prefix) in prefixes.iter().enumerate() {
        if overlaps_with(&client.caching.prefixes, prefix)
            && let Some(own) = client
                .caching
                .prefixes
                .iter()
                .find(|own| overlap(own, prefix))
        {
            return fail(prefix, "an existing", own);
        }
        if among == Some(at)
            && let Some(other) = prefixes[at + 1..].iter().find(|p| overlap(p, prefix))
        {
            return fail(prefix, "another provided", other);
        }
    }
    Ok(())
}

/// `CLIENT TRACKING ON|OFF [REDIRECT id] [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]`
pub(super) fn tracking(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let options = parse_options(ctx, args)?;
    if ctx.thread.records {
        ctx.collect_own(); // A transaction's changes before this request follow the state before it.
    }
    match text::option(args.at(2)).as_slice() {
        b"on" => enable(ctx, &options)?,
        b"off" => ctx.client.end_tracking(&ctx.shared.interests.tracking),
        _ => return Err(SYNTAX),
    }
    reply::ok(ctx.out);
    Ok(())
}

fn enable(ctx: &mut CommandContext<'_>, options: &TrackingOptions<'_>) -> Result<(), CommandError> {
    let client = &mut *ctx.client;
    let now = client.client_info.tracking.load(Ordering::Relaxed);
    check_options(options, now)?;
    let mut new: Vec<Arc<[u8]>> = Vec::new();
    if options.flags & tracking_flag::BCAST != 0 {
        check_prefixes(client, &options.prefixes)?;
        match options.prefixes.as_slice() {
            [] => new.push(Arc::default()),
            prefixes => new.extend(prefixes.iter().map(|prefix| Arc::from(*prefix))),
        }
    }
    client.caching.has_tracked = true;
    client.caching.tracks_reads = options.flags & tracking_flag::BCAST == 0;
    let redirect = u64::try_from(options.redirect).unwrap_or(0);
    let flags = options.flags | tracking_flag::ON;
    let tracking = &ctx.shared.interests.tracking;
    tracking.enable(&client.client_info, flags, redirect, &new);
    client.caching.prefixes.extend(new);
    Ok(())
}

/// `CLIENT CACHING YES|NO`
pub(super) fn caching(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let flags = &ctx.client.client_info.tracking;
    let has = |flag| flags.load(Ordering::Relaxed) & flag != 0;
    if !has(tracking_flag::ON) {
        return Err(NOT_TRACKING);
    }
    match text::option(args.at(2)).as_slice() {
        b"yes" if has(tracking_flag::OPTIN) => {}
        b"yes" => return Err(NOT_OPTIN),
        b"no" if has(tracking_flag::OPTOUT) => {}
        b"no" => return Err(NOT_OPTOUT),
        _ => return Err(SYNTAX),
    }
    flags.fetch_or(tracking_flag::CACHING, Ordering::Relaxed);
    reply::ok(ctx.out);
    Ok(())
}

/// The client that receives the invalidations of this one: 0 if itself, -1 if it tracks nothing.
pub(super) fn redirect_of(client: &ClientInfo) -> i64 {
    match is_tracking(client) {
        true => {
            let id = client.redirect.load(Ordering::Relaxed);
            i64::try_from(id).unwrap_or(i64::MAX)
        }
        false => -1,
    }
}

/// `CLIENT GETREDIR`
pub(super) fn getredir(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    reply::integer(ctx.out, redirect_of(&ctx.client.client_info));
    Ok(())
}

/// `CLIENT TRACKINGINFO`
pub(super) fn trackinginfo(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let resp = ctx.client.resp;
    let flags = ctx.client.client_info.tracking.load(Ordering::Relaxed);
    let has = |flag| flags & flag != 0;
    let is_caching = has(tracking_flag::CACHING);
    let is_on = has(tracking_flag::ON);
    let words = [
        ("on", is_on),
        ("off", !is_on),
        ("bcast", has(tracking_flag::BCAST)),
        ("optin", has(tracking_flag::OPTIN)),
        ("caching-yes", has(tracking_flag::OPTIN) && is_caching),
        ("optout", has(tracking_flag::OPTOUT)),
        ("caching-no", has(tracking_flag::OPTOUT) && is_caching),
        ("noloop", has(tracking_flag::NOLOOP)),
        ("broken_redirect", has(tracking_flag::BROKEN)),
    ];
    let words = words.iter().filter(|(_, is_set)| *is_set);
    reply::map(ctx.out, resp, 3);
    reply::bulk(ctx.out, b"flags");
    reply::set(ctx.out, resp, words.clone().count());
    for (word, _) in words {
        reply::bulk(ctx.out, word.as_bytes());
    }
    reply::bulk(ctx.out, b"redirect");
    reply::integer(ctx.out, redirect_of(&ctx.client.client_info));
    reply::bulk(ctx.out, b"prefixes");
    reply::array(ctx.out, ctx.client.caching.prefixes.len());
    for prefix in &ctx.client.caching.prefixes {
        reply::bulk(ctx.out, prefix);
    }
    Ok(())
}

/// Whether the request may make its client track keys.
#[inline]
pub(super) fn enables_tracking(
    client: &ClientState,
    command: Option<&'static Command>,
    args: Args<'_>,
) -> bool {
    command.is_some_and(|command| command.is(flag::TRACKS) && turns_on(client, command, args))
}

fn turns_on(client: &ClientState, command: &Command, args: Args<'_>) -> bool {
    match (command.name, &client.transaction.queue) {
        ("exec", Some(queue)) => queue.has(flag::TRACKS),
        ("exec", None) | (_, Some(_)) => false,
        (_, None) => text::is_option(args.at(1), "tracking") && text::is_option(args.at(2), "on"),
    }
}

/// Whether this turn and all executors record changes (SRV-TRACK-4). Makes them do it if not.
#[cold]
pub(super) fn is_recording(ctx: &CommandContext<'_>) -> bool {
    let tracking = &ctx.shared.interests.tracking;
    if tracking.turn_on() {
        ctx.shared.threads.wake();
    }
    ctx.thread.records && tracking.is_ready()
}

impl CommandContext<'_> {
    /// Registers the client for the keys that a request reads, if it caches them. Called before the request executes
    /// (SRV-TRACK-1).
    #[inline]
    pub(super) fn track_reads(&mut self, command: &Command, args: Args<'_>) {
        if self.client.caching.tracks_reads && command.is(flag::READONLY) {
            self.register_keys(command, args);
        }
    }

    #[cold]
    fn register_keys(&mut self, command: &Command, args: Args<'_>) {
        // As in Redis, what a script reads registers the keys that it has declared.
        if command.is(flag::SCRIPT) || !self.caches_request() {
            return;
        }
        if self.request.replies_to_script {
            for key in std::mem::take(&mut self.client.caching.script_keys) {
                self.register_key(&key);
                self.client.caching.script_keys.push(key);
            }
            return;
        }
        if command.has_keys() {
            for at in command.key_positions(args) {
                self.register_key(args.at(at));
            }
        }
    }

    /// Whether the client caches what this request reads, by OPTIN and OPTOUT.
    fn caches_request(&self) -> bool {
        let flags = self.client.client_info.tracking.load(Ordering::Relaxed);
        let has = |flag| flags & flag != 0;
        match has(tracking_flag::CACHING) {
            true => !has(tracking_flag::OPTOUT),
            false => !has(tracking_flag::OPTIN),
        }
    }

    fn register_key(&mut self, key: &[u8]) {
        let is_new = self
            .shared
            .interests
            .tracking
            .register(key, &self.client.client_info);
        if is_new {
            self.note_expiry_of(self.key(key));
        }
        let key = key.into();
        lock(&self.thread.log).push(KeyEvent::Read { key, is_new });
    }

    /// Lists a key that was registered now, if it expires soon. The thread of expiries finds those that expire later.
    fn note_expiry_of(&mut self, key: Key<'_>) {
        let view = self.view();
        let now_ms = self.ops().now_ms();
        let expires_ms = match &mut self.store {
            StoreAccess::Session(session) => match session.meta(key, view) {
                Ok(meta) => meta.map_or(0, |meta| meta.expires_ms),
                Err(_) => 0,
            },
            // A group may not know the key. The thread reads its expiry.
            _ => now_ms,
        };
        if expires_ms != 0 {
            let key = self.shared.stored_key(key);
            self.shared.threads.expiries().note(key, expires_ms, now_ms);
        }
    }

    /// Keeps the keys that a script has declared, for [`CommandContext::track_reads`].
    #[inline]
    pub(super) fn note_script_keys<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        if self.client.caching.tracks_reads {
            self.client.caching.script_keys = keys.map(Box::from).collect();
        }
    }

    /// Records that an expired value was found at `key`, for the clients that cache it.
    pub(super) fn note_expired(&mut self, key: Key<'_>) {
        if self.thread.records {
            let (key, by_client) = (key.bytes.into(), false);
            lock(&self.thread.log).push(KeyEvent::Changed { key, by_client });
        }
    }

    /// Whether changes of keys are published or announced.
    #[inline]
    pub(super) fn shows_changes(&self) -> bool {
        self.thread.records || self.shared.settings.notifies()
    }

    /// Begins to delete all keys of a database, which are announced together.
    pub(super) fn begin_flush(&mut self) {
        if self.thread.records {
            let mut log = lock(&self.thread.log);
            log.set_flushing(true);
            log.push(KeyEvent::Flushed);
        }
    }

    /// Ends what [`CommandContext::begin_flush`] has begun.
    pub(super) fn end_flush(&mut self) {
        if self.thread.records {
            lock(&self.thread.log).set_flushing(false);
        }
    }

    /// Keeps the table of tracked keys within its limit. As in Redis, the client's invalidations precede its reply.
    #[inline]
    pub(super) fn limit_tracked_keys(&mut self) {
        if self.thread.records {
            let keys_max = size(&self.shared.settings.tracked_keys);
            if self.shared.interests.tracking.is_over(keys_max) {
                self.evict_tracked_keys(keys_max);
            }
        }
    }

    #[cold]
    fn evict_tracked_keys(&mut self, keys_max: usize) {
        let shared = self.shared;
        for EvictedKey { name, mut clients } in shared.interests.tracking.evict(keys_max) {
            let is_own = |client: &mut Arc<_>| Arc::ptr_eq(client, &self.client.client_info);
            let own = clients.extract_if(.., is_own).next().is_some();
            let others = shared
                .interests
                .tracking
                .invalidation(&shared.clients, &name, &clients);
            if let Some(others) = others {
                self.thread.outbox.push(others, false);
            }
            if own {
                let start = self.out.len();
                self.invalidate_own(Some(&name));
                self.note_push(start);
            }
        }
    }

    /// Forgets the events of a request that has had no effect.
    pub(super) fn forget_events(&mut self) {
        if self.thread.records {
            lock(&self.thread.log).rewind(0);
        }
    }

    /// Ends the request for client-side caching: sends the client the invalidations of its own changes, and lists all
    /// changes for the other clients (SRV-TRACK-6).
    #[inline]
    pub(super) fn settle_changes(&mut self) {
        if self.thread.records {
            self.settle_events();
        }
    }

    fn settle_events(&mut self) {
        self.client.caching.script_keys.clear();
        self.collect_own();
        for key in std::mem::take(&mut self.client.caching.own_invalidations) {
            self.invalidate_own(key.as_deref());
        }
    }

    /// Settles the events so far. Keeps the client's own invalidations until the request ends.
    fn collect_own(&mut self) {
        let events = lock(&self.thread.log).take_events();
        let changes = |event: &KeyEvent| !matches!(event, KeyEvent::Read { .. });
        if events.iter().any(changes) {
            let own = self.own_invalidations(&events);
            let own: Vec<_> = own.into_iter().map(|key| key.map(Box::from)).collect();
            self.client.caching.own_invalidations.extend(own);
            lock(&self.thread.log).settle(events, self.client.id());
        }
    }

    /// The invalidations that the client gets of its own changes, in order; `None` stands for all keys. Also ends its
    /// registrations for the changed keys that it has not read again.
    fn own_invalidations<'e>(&self, events: &'e [KeyEvent]) -> Vec<Option<&'e [u8]>> {
        let (tracking, client) = (&self.shared.interests.tracking, &*self.client.client_info);
        let mut own = Vec::new();
        let is_caching = is_caching(client);
        let has_loop = client.tracking.load(Ordering::Relaxed) & tracking_flag::NOLOOP == 0;
        // Whether the client was registered before its first read of a key.
        let mut before = HashMap::new();
        if is_caching {
            for event in events.iter().rev() {
                if let KeyEvent::Read { key, is_new } = event {
                    before.insert(&**key, !is_new);
                }
            }
        }
        let (mut registered, mut is_flushed) = (HashMap::new(), false);
        for event in events {
            match event {
                KeyEvent::Read { key, .. } => drop(registered.insert(&**key, true)),
                KeyEvent::Changed { key, .. } if is_caching => {
                    let was = match (registered.insert(&**key, false), is_flushed) {
                        (Some(was), _) => was,
                        (None, true) => false,
                        (None, false) => match before.get(&**key) {
                            Some(was) => *was,
                            None => tracking.is_registered(key, client.id),
                        },
                    };
                    if was && has_loop {
                        own.push(Some(&**key));
                    }
                }
                KeyEvent::Changed { .. } => {}
                KeyEvent::Flushed => {
                    registered.clear();
                    is_flushed = true;
                    if is_tracking(client) {
                        own.push(None);
                    }
                }
            }
        }
        let kept = |key: &[u8]| registered.get(key) == Some(&true);
        if is_flushed {
            let has_kept = registered.values().any(|is_registered| *is_registered);
            let is_kept = |key: &[u8], other: &ClientInfo| other.id == client.id && kept(key);
            tracking.clear(has_kept.then_some(&is_kept));
            return own;
        }
        for event in events {
            if let KeyEvent::Changed { key, .. } = event
                && self.client.caching.has_tracked
                && !kept(key)
            {
                tracking.unregister(key, client.id);
            }
        }
        own
    }

    /// Sends the client its own invalidation of `key`, or of all keys.
    fn invalidate_own(&mut self, key: Option<&[u8]>) {
        let client = &self.client.client_info;
        let redirect = client.redirect.load(Ordering::Relaxed);
        let shared = self.shared;
        if redirect != 0 && redirect != client.id {
            let publication: Option<Publication> = match key {
                Some(key) => {
                    let receivers = [Arc::clone(client)];
                    shared
                        .interests
                        .tracking
                        .invalidation(&shared.clients, key, &receivers)
                }
                None => shared.interests.tracking.flush_of(&shared.clients, client),
            };
            if let Some(publication) = publication {
                self.send_with_batch(publication);
            }
            return;
        }
        let kind = match redirect {
            0 => TargetKind::Invalidation,
            _ if !self.client.has_subscriptions() => TargetKind::Invalidation,
            _ => TargetKind::Redirected,
        };
        let tail = match key {
            Some(key) => keys_tail(&[key]),
            None => flush_tail(client).to_vec(),
        };
        append_invalidation(self.out, self.client.resp, kind, &tail);
    }

    /// Ends the effect of CLIENT CACHING, unless the request is CLIENT or a transaction goes on.
    #[inline]
    pub(super) fn end_caching(&mut self, command: Option<&'static Command>) {
        if self.client.caching.tracks_reads
            && self.client.transaction.queue.is_none()
            && command.is_none_or(|command| command.name != "client")
        {
            let flags = &self.client.client_info.tracking;
            flags.fetch_and(!tracking_flag::CACHING, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::rng::Rng;

    use super::*;

    #[test]
    fn overlaps_are_found_as_by_comparing_all_pairs() {
        let words: Vec<&[u8]> = vec![
            b"", b"a", b"ab", b"abc", b"b", b"ba", b"c", b"ca", b"cab", b"x",
        ];
        let mut rng = Rng::new(7);
        let mut random = |below: usize| rng.below(below as u64) as usize;
        for _ in 0..2000 {
            let len = random(5);
            let list: Vec<&[u8]> = (0..len).map(|_| words[random(words.len())]).collect();
            let pairs = |at: &usize| list[at + 1..].iter().any(|other| overlap(other, list[*at]));
            let expected = (0..list.len()).find(pairs);
            assert_eq!(first_overlap(&list), expected, "{list:?}");
            if expected.is_none() {
                let own: BTreeSet<Arc<[u8]>> = list.iter().map(|p| Arc::from(*p)).collect();
                for word in &words {
                    let expected = list.iter().any(|prefix| overlap(prefix, word));
                    assert_eq!(overlaps_with(&own, word), expected, "{list:?} {word:?}");
                }
            }
        }
    }
}
