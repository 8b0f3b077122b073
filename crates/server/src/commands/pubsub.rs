//! Publish and subscribe: SUBSCRIBE UNSUBSCRIBE PSUBSCRIBE PUNSUBSCRIBE SSUBSCRIBE SUNSUBSCRIBE PUBLISH SPUBLISH PUBSUB.
//!
//! The invariants SRV-PUB-1 to SRV-PUB-4 are in `state::messages`.

use super::command::help_of;
use super::context::CommandContext;
use super::error::CommandError;
use super::text::quote;
use crate::glob::{LetterCase, matches};
use crate::protocol::resp::{Args, RespVersion, reply};
use crate::state::messages::{Publication, SubscriptionKind, TargetKind};

/// Words of the replies to a change of a subscription.
struct ChangeWords {
    added: &'static [u8],
    removed: &'static [u8],
}

fn words(kind: SubscriptionKind) -> ChangeWords {
    let (added, removed): (&[u8], &[u8]) = match kind {
        SubscriptionKind::Channel => (b"subscribe", b"unsubscribe"),
        SubscriptionKind::Pattern => (b"psubscribe", b"punsubscribe"),
        SubscriptionKind::Shard => (b"ssubscribe", b"sunsubscribe"),
        SubscriptionKind::Monitor => (b"monitor", b"reset"),
    };
    ChangeWords { added, removed }
}

/// Whether the client is in the state in which RESP2 allows few commands.
pub(super) fn is_restricted(ctx: &CommandContext<'_>) -> bool {
    ctx.client.resp == RespVersion::V2 && ctx.client.has_subscriptions()
}

/// Whether a restricted client may use this command.
pub(super) fn is_allowed(name: &str) -> bool {
    matches!(
        name,
        "ping"
            | "subscribe"
            | "ssubscribe"
            | "unsubscribe"
            | "sunsubscribe"
            | "psubscribe"
            | "punsubscribe"
            | "quit"
            | "reset"
    )
}

/// The error of another command.
#[cold]
pub(super) fn not_allowed(name: &str) -> CommandError {
    let text = format!(
        "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
         context"
    );
    CommandError::Detailed(text.into_bytes())
}

/// Appends the reply to one change: its word, the name, and the number of the client's subscriptions.
fn reply_change(
    ctx: &mut CommandContext<'_>,
    kind: SubscriptionKind,
    word: &[u8],
    name: Option<&[u8]>,
) {
    let count = ctx
        .client
        .subscriptions
        .as_ref()
        .map_or(0, |own| match kind {
            SubscriptionKind::Shard => own.len(kind),
            _ => own.len(SubscriptionKind::Channel) + own.len(SubscriptionKind::Pattern),
        });
    let (resp, start) = (ctx.client.resp, ctx.out.len());
    reply::push(ctx.out, resp, 3);
    reply::bulk(ctx.out, word);
    match name {
        Some(name) => reply::bulk(ctx.out, name),
        None => reply::null(ctx.out, resp),
    }
    reply::integer(ctx.out, i64::try_from(count).unwrap_or(i64::MAX));
    ctx.note_push(start);
}

fn subscribe_to(ctx: &mut CommandContext<'_>, args: Args<'_>, kind: SubscriptionKind) {
    for name in args.from(1) {
        if ctx.out.is_cut() {
            break;
        }
        let own = ctx.client.subscriptions.get_or_insert_default();
        if let Some(name) = own.insert(kind, name) {
            let client_info = &ctx.client.client_info;
            ctx.shared
                .interests
                .subscriptions
                .add(client_info, kind, &name);
        }
        ctx.client.note_subscribed();
        reply_change(ctx, kind, words(kind).added, Some(name));
    }
}

fn unsubscribe_from(ctx: &mut CommandContext<'_>, args: Args<'_>, kind: SubscriptionKind) {
    let own = ctx.client.subscriptions.as_ref();
    let all = match args.len() {
        1 => own.map_or_else(Vec::new, |own| own.names(kind)),
        _ => Vec::new(),
    };
    let removed = words(kind).removed;
    for name in args.from(1).chain(all.iter().map(|name| &**name)) {
        remove(ctx, kind, name);
        reply_change(ctx, kind, removed, Some(name));
    }
    if args.len() == 1 && all.is_empty() {
        reply_change(ctx, kind, removed, None);
    }
}

/// Removes a subscription of the client.
fn remove(ctx: &mut CommandContext<'_>, kind: SubscriptionKind, name: &[u8]) {
    let own = ctx.client.subscriptions.as_mut();
    if own.is_some_and(|own| own.remove(kind, name)) {
        let client_info = &ctx.client.client_info;
        ctx.shared
            .interests
            .subscriptions
            .remove(client_info, kind, name);
        ctx.client.note_subscribed();
    }
}

/// Removes all subscriptions of the client.
pub(super) fn unsubscribe_all(ctx: &mut CommandContext<'_>) {
    if let Some(mut own) = ctx.client.subscriptions.take() {
        for (kind, name) in own.drain(usize::MAX) {
            let client_info = &ctx.client.client_info;
            ctx.shared
                .interests
                .subscriptions
                .remove(client_info, kind, &name);
        }
        ctx.client.note_subscribed();
    }
}

/// `SUBSCRIBE channel [channel ...]`
pub(super) fn subscribe(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    subscribe_to(ctx, args, SubscriptionKind::Channel);
    Ok(())
}

/// `PSUBSCRIBE pattern [pattern ...]`
pub(super) fn psubscribe(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    subscribe_to(ctx, args, SubscriptionKind::Pattern);
    Ok(())
}

/// `SSUBSCRIBE shardchannel [shardchannel ...]`. Unlike the other two, not allowed in EXEC.
pub(super) fn ssubscribe(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if ctx.client.transaction.executing.is_some() {
        let text = "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client";
        return Err(CommandError::Fixed(text));
    }
    subscribe_to(ctx, args, SubscriptionKind::Shard);
    Ok(())
}

/// `UNSUBSCRIBE [channel ...]`
pub(super) fn unsubscribe(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    unsubscribe_from(ctx, args, SubscriptionKind::Channel);
    Ok(())
}

/// `PUNSUBSCRIBE [pattern ...]`
pub(super) fn punsubscribe(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    unsubscribe_from(ctx, args, SubscriptionKind::Pattern);
    Ok(())
}

/// `SUNSUBSCRIBE [shardchannel ...]`
pub(super) fn sunsubscribe(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    unsubscribe_from(ctx, args, SubscriptionKind::Shard);
    Ok(())
}

/// `PUBLISH channel message`
pub(super) fn publish(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    publish_to(ctx, args, SubscriptionKind::Channel);
    Ok(())
}

/// `SPUBLISH shardchannel message`
pub(super) fn spublish(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    publish_to(ctx, args, SubscriptionKind::Shard);
    Ok(())
}

fn publish_to(ctx: &mut CommandContext<'_>, args: Args<'_>, kind: SubscriptionKind) {
    let published = ctx
        .shared
        .interests
        .subscriptions
        .publish(kind, args.at(1), args.at(2));
    let Some(mut publication) = published else {
        return reply::integer(ctx.out, 0);
    };
    receive_own(ctx, &mut publication);
    let receivers = publication.receivers;
    ctx.send_with_batch(publication);
    reply::integer(ctx.out, i64::try_from(receivers).unwrap_or(i64::MAX));
}

/// Appends the message to the replies of its publisher if the publisher is subscribed. As in Redis, it precedes the
/// reply of PUBLISH. If a script publishes, its client receives the message as other clients do.
fn receive_own(ctx: &mut CommandContext<'_>, publication: &mut Publication) {
    if ctx.request.replies_to_script {
        return;
    }
    let (worker, id) = (ctx.client.client_info.worker, ctx.client.id());
    let Some(own) = &ctx.client.subscriptions else {
        return;
    };
    let deliveries = &mut publication.deliveries;
    let Some((_, delivery)) = deliveries.iter_mut().find(|(at, _)| *at == worker) else {
        return;
    };
    delivery.except = Some(id);
    let start = ctx.out.len();
    for target in &delivery.targets {
        if let TargetKind::Subscription(kind) = target.kind
            && own.contains(kind, &target.name)
        {
            delivery.message.append(ctx.out, ctx.client.resp, target);
        }
    }
    ctx.note_push(start);
}

fn channels_of(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    kind: SubscriptionKind,
) -> Result<(), CommandError> {
    if args.len() > 3 {
        let text = [
            b"ERR unknown subcommand or wrong number of arguments for '",
            quote(args.at(1), 128),
            b"'. Try PUBSUB HELP.",
        ];
        return Err(CommandError::Detailed(text.concat()));
    }
    let wanted = |name: &[u8]| match args.get(2) {
        Some(pattern) => matches(pattern, name, LetterCase::Exact),
        None => true,
    };
    let names = ctx
        .shared
        .interests
        .subscriptions
        .channel_names(kind, &wanted);
    reply::array(ctx.out, names.len());
    for name in names {
        reply::bulk(ctx.out, &name);
    }
    Ok(())
}

fn subscribers_of(ctx: &mut CommandContext<'_>, args: Args<'_>, kind: SubscriptionKind) {
    reply::array(ctx.out, 2 * (args.len() - 2));
    for name in args.from(2) {
        let count = ctx.shared.interests.subscriptions.subscribers(kind, name);
        reply::bulk(ctx.out, name);
        reply::integer(ctx.out, i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// `PUBSUB CHANNELS [pattern]`
pub(super) fn channels(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    channels_of(ctx, args, SubscriptionKind::Channel)
}

/// `PUBSUB SHARDCHANNELS [pattern]`
pub(super) fn shardchannels(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    channels_of(ctx, args, SubscriptionKind::Shard)
}

/// `PUBSUB NUMSUB [channel ...]`
pub(super) fn numsub(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    subscribers_of(ctx, args, SubscriptionKind::Channel);
    Ok(())
}

/// `PUBSUB SHARDNUMSUB [shardchannel ...]`
pub(super) fn shardnumsub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    subscribers_of(ctx, args, SubscriptionKind::Shard);
    Ok(())
}

/// `PUBSUB NUMPAT`
pub(super) fn numpat(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let patterns = ctx.shared.interests.subscriptions.patterns();
    reply::integer(ctx.out, i64::try_from(patterns).unwrap_or(i64::MAX));
    Ok(())
}

/// `PUBSUB HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "pubsub");
    Ok(())
}
