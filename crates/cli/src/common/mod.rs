//! Code that several subcommands share.
//!
//! | file           | has                                                                  |
//! |----------------|----------------------------------------------------------------------|
//! | `output`       | the print macros of this program, and the end at a closed pipe       |
//! | `failure`      | [`Failure`], the reason for a non-zero exit                          |
//! | `choice`       | parsers of options whose values are the names of a library's enum    |
//! | `options_file` | options from the TOML file of `--config` or `--workload`             |
//! | `redis_conf`   | options from a file in the syntax of redis.conf                      |
//! | `place`        | the options that select a pool's medium or describe a new pool       |
//! | `size`         | sizes such as `64kb`                                                 |
//! | `json`         | JSON in ASCII, for keys and values of any bytes                      |
//! | `json_lines`   | the lines of a server as JSON objects, and the start of its log      |
//! | `key_file`     | the file with the key of a cluster of memory servers                 |
//! | `progress`     | the progress bar of a long operation                                 |

#[macro_use]
pub(crate) mod output;

pub(crate) mod choice;
pub(crate) mod existing;
mod failure;
pub(crate) mod json;
pub(crate) mod json_lines;
mod key_file;
pub(crate) mod options_file;
pub(crate) mod place;
pub(crate) mod progress;
pub(crate) mod redis_conf;
pub(crate) mod size;

use std::path::{Path, PathBuf};

pub(crate) use failure::Failure;
pub(crate) use key_file::read_key;

/// Returns `path` from the root on. It stays as it is if the working folder is unknown.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
