//! HyperLogLogs: PFADD PFCOUNT PFMERGE. Their bytes are in [`super::hll`].

use farbank_store::{GroupDecision, Key, Ops, ReadView, UpdateDecision, Value, ValueMeta};

use super::context::CommandContext;
use super::error::CommandError;
use super::hll::{CorruptHll, HyperLogLog, REGISTERS, Registers, cardinality};
use super::values::{STRING, StringReader, string_in, string_instead_of};
use crate::protocol::resp::{Args, reply};

const NO_HLL: CommandError =
    CommandError::Fixed("WRONGTYPE Key is not a valid HyperLogLog string value.");
const CORRUPT: CommandError = CommandError::Fixed("INVALIDOBJ Corrupted HLL object detected");
/// Most HyperLogLogs that a worker reads for one request.
const SHORT_KEYS: usize = 64;

impl From<CorruptHll> for CommandError {
    fn from(_: CorruptHll) -> CommandError {
        CORRUPT
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<HyperLogLog, CommandError> {
    HyperLogLog::from_bytes(bytes.to_vec()).ok_or(NO_HLL)
}

/// `PFADD key [element ...]`
pub(super) fn pfadd(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let key = ctx.key(args.at(1));
    ctx.refuse_long_value(key)?;
    let mut outcome = Ok(false);
    ctx.update(key, &mut |item| {
        let added = string_in(item).and_then(|bytes| {
            let (mut hll, mut changed) = match bytes {
                Some(bytes) => (parse(bytes)?, false),
                None => (HyperLogLog::new(), true),
            };
            for element in args.from(2) {
                changed |= hll.add(element)?;
            }
            Ok((hll, changed))
        });
        match added {
            Ok((mut hll, true)) => {
                outcome = Ok(true);
                hll.invalidate();
                string_instead_of(item, hll.into_bytes())
            }
            other => {
                outcome = other.map(|_| false);
                UpdateDecision::Keep
            }
        }
    })?;
    let is_changed = outcome?;
    if is_changed {
        ctx.notify_string("pfadd", key, ctx.request.was_absent);
    }
    reply::integer(ctx.out, i64::from(is_changed));
    Ok(())
}

/// Estimates the cardinality of one HyperLogLog.
pub(super) fn count(hll: &HyperLogLog) -> Result<u64, CommandError> {
    let mut registers = [0; REGISTERS];
    hll.merge_into(&mut registers)?;
    Ok(cardinality(&registers))
}

fn reply_count(ctx: &mut CommandContext<'_>, count: u64) {
    // Redis prints the 64 bits with a sign.
    reply::integer(ctx.out, count.cast_signed());
}

/// `PFCOUNT key [key ...]`
pub(super) fn pfcount(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len() == 2 {
        return pfcount_one(ctx, ctx.key(args.at(1)));
    }
    if args.len() > SHORT_KEYS && !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let db = ctx.client.db;
    let keys: Vec<_> = args.from(1).map(|bytes| Key { db, bytes }).collect();
    let (mut registers, mut found) = ([0; REGISTERS], Vec::new());
    merge_in_group(ctx, &keys, &mut |_, merged| {
        (registers, found) = (merged.registers, merged.found);
        Ok(GroupDecision::Apply)
    })?;
    for (&key, is_there) in keys.iter().zip(found) {
        ctx.count_lookup(key, is_there);
    }
    reply_count(ctx, cardinality(&registers));
    Ok(())
}

/// PFCOUNT of one key, which caches the cardinality in the value.
fn pfcount_one(ctx: &mut CommandContext<'_>, key: Key<'_>) -> Result<(), CommandError> {
    let Some(bytes) = ctx.read_string(key)? else {
        reply::integer(ctx.out, 0);
        return Ok(());
    };
    let hll = parse(&bytes)?;
    if let Some(cached) = hll.cached() {
        reply_count(ctx, cached);
        return Ok(());
    }
    let read = count(&hll)?;
    let count = cache_cardinality(ctx, key)?.unwrap_or(read);
    reply_count(ctx, count);
    Ok(())
}

/// Caches the cardinality of the newest value of `key`, and returns it. `Ok(None)`: the store takes no writes, so the
/// value stays as it is.
fn cache_cardinality(
    ctx: &mut CommandContext<'_>,
    key: Key<'_>,
) -> Result<Option<u64>, CommandError> {
    let was_marked = ctx.mark.is_some();
    ctx.mark.get_or_insert(ctx.request.reply_start); // SRV-CMD-1: this is a write.
    let mut outcome = Ok(0);
    let updated = ctx.update(key, &mut |item| {
        let counted = string_in(item).and_then(|bytes| {
            let hll = bytes.map(parse).transpose()?;
            hll.map(|hll| Ok((count(&hll)?, hll))).transpose()
        });
        match counted {
            Ok(Some((count, mut hll))) => {
                outcome = Ok(count);
                hll.set_cached(count);
                string_instead_of(item, hll.into_bytes())
            }
            Ok(None) => {
                outcome = Ok(0);
                UpdateDecision::Keep
            }
            Err(error) => {
                outcome = Err(error);
                UpdateDecision::Keep
            }
        }
    });
    if updated.is_err() {
        if !was_marked {
            *ctx.mark = None;
        }
        return Ok(None);
    }
    outcome.map(Some)
}

/// `PFMERGE destination [key ...]`
pub(super) fn pfmerge(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len() > SHORT_KEYS && !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let db = ctx.client.db;
    let keys: Vec<_> = args.from(1).map(|bytes| Key { db, bytes }).collect();
    let mut found = Vec::new();
    merge_in_group(ctx, &keys, &mut |ops, mut merged| {
        found = std::mem::take(&mut merged.found);
        let (meta, base) = merged
            .first
            .take()
            .unwrap_or_else(|| (ValueMeta::default(), HyperLogLog::new()));
        let merged = merged.into_hll(base)?.into_bytes();
        let value = Value {
            bytes: &merged,
            expires_ms: meta.expires_ms,
            flags: meta.flags,
            kind: STRING,
        };
        ops.put(keys[0], value)?;
        Ok(GroupDecision::Apply)
    })?;
    for (&key, is_there) in keys.iter().zip(&found) {
        if !is_there {
            ctx.notify_miss(key);
        }
    }
    ctx.notify_string("pfadd", keys[0], found.first() == Some(&false));
    reply::ok(ctx.out);
    Ok(())
}

/// Reads the HyperLogLogs at `keys` in a group, as of one moment, and calls `then` with their merged registers. One
/// value is in memory at a time.
fn merge_in_group(
    ctx: &mut CommandContext<'_>,
    keys: &[Key<'_>],
    then: &mut dyn FnMut(&mut dyn Ops, MergedHlls) -> Result<GroupDecision, CommandError>,
) -> Result<(), CommandError> {
    let (mut failure, mut read_bytes) = (None, 0);
    let reader = ctx.string_reader();
    ctx.grouped(keys, &mut |ops| {
        (failure, read_bytes) = (None, 0);
        let merged = MergedHlls::read(ops, keys, reader.clone(), &mut read_bytes);
        match merged.and_then(|merged| then(ops, merged)) {
            Err(CommandError::Store(error)) => Err(error),
            Err(other) => {
                failure = Some(other);
                Ok(GroupDecision::Abandon)
            }
            Ok(decision) => Ok(decision),
        }
    })?;
    ctx.request.hidden_bytes += read_bytes;
    failure.map_or(Ok(()), Err)
}

/// Several HyperLogLogs, merged.
struct MergedHlls {
    registers: Registers,
    /// Whether one of them is dense.
    is_dense: bool,
    /// The one at the first key, with its metadata.
    first: Option<(ValueMeta, HyperLogLog)>,
    /// Whether each key exists.
    found: Vec<bool>,
}

impl MergedHlls {
    fn read(
        ops: &mut dyn Ops,
        keys: &[Key<'_>],
        mut reader: StringReader,
        read_bytes: &mut usize,
    ) -> Result<MergedHlls, CommandError> {
        let mut merged = MergedHlls {
            registers: [0; REGISTERS],
            is_dense: false,
            first: None,
            found: Vec::with_capacity(keys.len()),
        };
        let mut bytes = Vec::new();
        for (at, &key) in keys.iter().enumerate() {
            bytes.clear();
            let meta = reader.append(ops, key, ReadView::Pending, &mut bytes)?;
            merged.found.push(meta.is_some());
            let Some(meta) = meta else { continue };
            *read_bytes += bytes.len();
            let hll = parse(&bytes)?;
            merged.is_dense |= hll.is_dense();
            hll.merge_into(&mut merged.registers)?;
            if at == 0 {
                merged.first = Some((meta, hll));
            }
        }
        Ok(merged)
    }

    /// Merges the registers into `base`.
    fn into_hll(self, mut base: HyperLogLog) -> Result<HyperLogLog, CorruptHll> {
        if self.is_dense {
            base.make_dense()?;
        }
        for (index, &value) in self.registers.iter().enumerate() {
            if value > 0 {
                base.raise(index, value)?;
            }
        }
        base.invalidate();
        Ok(base)
    }
}
