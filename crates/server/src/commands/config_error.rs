//! Reasons for which CONFIG SET refuses a value.

use std::fmt;

use crate::keyspace_events::UnknownEventClass;

/// Why CONFIG SET refuses a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConfigError {
    /// The client may not change limits.
    Protected,
    /// The parameter cannot change.
    Immutable,
    /// A change would promise what this server does not do: the reason.
    Fixed(&'static str),
    NotSwitch,
    /// The value is none of these words.
    NotAmong(&'static [&'static str]),
    /// The request names the parameter twice.
    Repeated,
    NotInteger,
    NotMemory,
    NotMemoryOrPercent,
    /// The percentage is above 100.
    PercentTooHigh,
    OutOfRange {
        least: i64,
        most: i64,
    },
    /// A buffer limit has a number of words that is no multiple of 4.
    LimitWords,
    LimitClass,
    LimitValue,
    EventClass,
    /// The value is not a list of numbers.
    NotPercentiles,
    PercentileRange,
    /// The files of TLS cannot be used.
    Tls,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConfigError::Protected => "can't set protected config",
            ConfigError::Immutable => "can't set immutable config",
            ConfigError::Fixed(reason) => reason,
            ConfigError::NotSwitch => "argument must be 'yes' or 'no'",
            ConfigError::NotAmong(words) => {
                let words = words.join(", ");
                return write!(f, "argument(s) must be one of the following: {words}");
            }
            ConfigError::Repeated => "duplicate parameter",
            ConfigError::NotInteger => "argument couldn't be parsed into an integer",
            ConfigError::NotMemory => "argument must be a memory value",
            ConfigError::NotMemoryOrPercent => "argument must be a memory or percent value",
            ConfigError::PercentTooHigh => "percentage argument must be less or equal to 100",
            ConfigError::OutOfRange { least, most } => {
                return write!(f, "argument must be between {least} and {most} inclusive");
            }
            ConfigError::NotPercentiles => "Invalid latency-tracking-info-percentiles parameters",
            ConfigError::PercentileRange => {
                "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]"
            }
            ConfigError::EventClass => return UnknownEventClass.fmt(f),
            ConfigError::Tls => "Unable to update TLS configuration. Check server logs.",
            ConfigError::LimitWords => "Wrong number of arguments in buffer limit configuration.",
            ConfigError::LimitClass => {
                "Invalid client class specified in buffer limit configuration."
            }
            ConfigError::LimitValue => {
                "Error in hard, soft or soft_seconds setting in buffer limit configuration."
            }
        })
    }
}
