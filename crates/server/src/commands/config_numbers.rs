//! Parameters that are numbers and that CONFIG SET can change.

use std::sync::atomic::{AtomicU64, Ordering};

use super::config_error::ConfigError;
use super::text::quote;
use crate::config_lines::memory;
use crate::protocol::resp::number::parse_i64;
use crate::settings::{ClientsMemory, LiveSettings};

/// Format of a number in the configuration.
#[derive(Clone, Copy)]
pub(super) enum NumberFormat {
    Plain,
    /// May be negative: the setting is an `i64`.
    Signed,
    /// May end in a unit of memory.
    Memory,
    /// As [`NumberFormat::Memory`], or a percentage.
    MemoryOrPercent,
}

/// A number that CONFIG SET can change.
pub(super) struct ConfigNumber {
    pub(super) name: &'static str,
    spelling: NumberFormat,
    least: i64,
    most: i64,
    pub(super) setting: fn(&LiveSettings) -> &AtomicU64,
}

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const LONG_MAX: i64 = i64::MAX;
const INT: i64 = i32::MAX as i64;
const MEGABYTE: i64 = 1 << 20;

const fn number(
    name: &'static str,
    spelling: NumberFormat,
    (least, most): (i64, i64),
    setting: fn(&LiveSettings) -> &AtomicU64,
) -> ConfigNumber {
    ConfigNumber {
        name,
        spelling,
        least,
        most,
        setting,
    }
}

/// The parameters.
pub(super) const NUMBERS: &[ConfigNumber] = &[
    number(
        "maxclients",
        NumberFormat::Plain,
        (1, u32::MAX as i64),
        |s| &s.clients_max,
    ),
    number("timeout", NumberFormat::Plain, (0, INT), |s| {
        &s.timeout_secs
    }),
    number("tcp-keepalive", NumberFormat::Plain, (0, INT), |s| {
        &s.keepalive_secs
    }),
    number(
        "busy-reply-threshold",
        NumberFormat::Plain,
        (0, LONG_MAX),
        |s| &s.busy_ms,
    ),
    number(
        "proto-max-bulk-len",
        NumberFormat::Memory,
        (MEGABYTE, LONG_MAX),
        |s| &s.bulk_bytes_max,
    ),
    number(
        "client-query-buffer-limit",
        NumberFormat::Memory,
        (MEGABYTE, LONG_MAX),
        |s| &s.input_bytes_max,
    ),
    number(
        "maxmemory-clients",
        NumberFormat::MemoryOrPercent,
        (0, LONG_MAX),
        |s| &s.clients_memory,
    ),
    number("maxmemory", NumberFormat::Memory, (0, LONG_MAX), |s| {
        &s.maxmemory
    }),
    number("maxmemory-samples", NumberFormat::Plain, (1, INT), |s| {
        &s.maxmemory_samples
    }),
    number("lfu-log-factor", NumberFormat::Plain, (0, INT), |s| {
        &s.lfu_log_factor
    }),
    number("lfu-decay-time", NumberFormat::Plain, (0, INT), |s| {
        &s.lfu_decay_minutes
    }),
    number(
        "slowlog-log-slower-than",
        NumberFormat::Signed,
        (-1, LONG_MAX),
        |s| &s.slowlog_micros,
    ),
    number("slowlog-max-len", NumberFormat::Plain, (0, LONG_MAX), |s| {
        &s.slowlog_len
    }),
    number(
        "backup-bytes-per-second",
        NumberFormat::Memory,
        (0, LONG_MAX),
        |s| &s.backup_bytes_per_sec,
    ),
    number(
        "latency-monitor-threshold",
        NumberFormat::Plain,
        (0, LONG_MAX),
        |s| &s.latency_ms,
    ),
    number(
        "tracking-table-max-keys",
        NumberFormat::Plain,
        (0, LONG_MAX),
        |s| &s.tracked_keys,
    ),
    number("acllog-max-len", NumberFormat::Plain, (0, LONG_MAX), |s| {
        &s.acl_log_len
    }),
];

/// Numbers of [`NUMBERS`] that are no limits: every client may change them.
pub(super) const HARMLESS: [&str; 8] = [
    "tracking-table-max-keys",
    "acllog-max-len",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "latency-monitor-threshold",
    "maxmemory-samples",
    "lfu-log-factor",
    "lfu-decay-time",
];

impl ConfigNumber {
    /// Returns the value as CONFIG REWRITE writes it.
    pub(super) fn rewritten(&self, settings: &LiveSettings) -> String {
        let value = (self.setting)(settings).load(Ordering::Relaxed);
        match (self.spelling, ClientsMemory::decode(value)) {
            (NumberFormat::Memory, _) => memory(value),
            (NumberFormat::MemoryOrPercent, ClientsMemory::Bytes(bytes)) => memory(bytes),
            _ => self.shown(settings),
        }
    }

    /// Returns the value as CONFIG GET shows it.
    pub(super) fn shown(&self, settings: &LiveSettings) -> String {
        let value = (self.setting)(settings).load(Ordering::Relaxed);
        match self.spelling {
            NumberFormat::Plain | NumberFormat::Memory => value.to_string(),
            NumberFormat::Signed => (value as i64).to_string(),
            NumberFormat::MemoryOrPercent => ClientsMemory::decode(value).to_string(),
        }
    }
}

/// Parses sizes such as `512mb` as Redis does: a text without digits is 0, text after a NUL is ignored, and a number
/// above 64 bits becomes the largest.
pub(super) fn parse_memory(text: &[u8]) -> Option<u64> {
    const DIGITS_MAX: usize = 127;
    let text = quote(text, usize::MAX);
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => MIB,
        b"g" => 1_000_000_000,
        b"gb" => GIB,
        _ => return None,
    };
    if digits > DIGITS_MAX {
        return None;
    }
    let add = |sum: u64, digit: &u8| {
        let digit = u64::from(digit - b'0');
        sum.saturating_mul(10).saturating_add(digit)
    };
    Some(number.iter().fold(0, add).saturating_mul(scale))
}

/// Parses percentages such as `25%`.
fn parse_percent(text: &[u8]) -> Option<u64> {
    let percent = parse_i64(text.strip_suffix(b"%")?)?;
    u64::try_from(percent).ok()
}

pub(super) fn parse_number(number: &ConfigNumber, value: &[u8]) -> Result<u64, ConfigError> {
    let parsed = match number.spelling {
        NumberFormat::Plain | NumberFormat::Signed => {
            Some(parse_i64(value).ok_or(ConfigError::NotInteger)?)
        }
        NumberFormat::Memory => {
            i64::try_from(parse_memory(value).ok_or(ConfigError::NotMemory)?).ok()
        }
        NumberFormat::MemoryOrPercent => {
            if let Some(percent) = parse_percent(value) {
                let percent = u8::try_from(percent).ok().filter(|percent| *percent <= 100);
                let percent = percent.ok_or(ConfigError::PercentTooHigh)?;
                return Ok(ClientsMemory::Percent(percent).encode());
            }
            let bytes = parse_memory(value).ok_or(ConfigError::NotMemoryOrPercent)?;
            i64::try_from(bytes).ok()
        }
    };
    let ConfigNumber { least, most, .. } = *number;
    match parsed.filter(|parsed| (least..=most).contains(parsed)) {
        Some(parsed) => Ok(parsed as u64),
        None => Err(ConfigError::OutOfRange { least, most }),
    }
}
