//! [`LibfabricError`]: the reason why libfabric cannot be used.

use std::fmt;

/// The reason why libfabric cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum LibfabricError {
    /// The library is not installed, or lacks a function.
    NotInstalled(libloading::Error),
    /// The library is older than 1.17.
    TooOld {
        /// Major version found.
        major: u32,
        /// Minor version found.
        minor: u32,
    },
    /// The library has no provider of this name with the capabilities that the fabric needs.
    NoProvider {
        /// The name.
        wanted: String,
        /// Names of the providers that it has.
        found: Vec<String>,
    },
    /// The provider cannot execute the atomics that the fabric needs.
    NoAtomics {
        /// Its name.
        provider: String,
    },
    /// The provider has no file descriptor to wait for, so that threads would have to poll.
    NoDescriptor {
        /// Its name.
        provider: String,
    },
    /// The provider executes verbs without the memory server, which therefore cannot fence a compute server.
    NotFenced {
        /// Its name.
        provider: String,
    },
    /// Memory servers of one cluster use different providers.
    OtherProvider {
        /// Provider of server 0.
        first: String,
        /// Provider of another server.
        other: String,
    },
    /// A call of the library failed.
    Call {
        /// What the call does.
        doing: &'static str,
        /// The code that it returned.
        code: i64,
        /// Meaning of the code.
        text: String,
    },
}

impl fmt::Display for LibfabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LibfabricError::NotInstalled(error) => write!(
                f,
                "cannot load libfabric.so.1: {}; install it, on Debian and Ubuntu by `apt-get install libfabric1`",
                reason_of(error)
            ),
            LibfabricError::TooOld { major, minor } => write!(
                f,
                "libfabric has version {major}.{minor}, expected 1.17 or newer: install a newer package libfabric1"
            ),
            LibfabricError::NoProvider { wanted, found } if found.is_empty() => write!(
                f,
                "libfabric has no provider {wanted:?} with remote atomics, and no other one"
            ),
            LibfabricError::NoProvider { wanted, found } => write!(
                f,
                "libfabric has no provider {wanted:?} with remote atomics that reaches the server; it has: {}",
                found.join(", ")
            ),
            LibfabricError::NoAtomics { provider } => write!(
                f,
                "libfabric's provider {provider} does not execute atomics on words: use another one"
            ),
            LibfabricError::NoDescriptor { provider } => write!(
                f,
                "libfabric's provider {provider} cannot wait for a file descriptor, and the fabric does not poll: use \
                 tcp;ofi_rxm, or shared memory without libfabric"
            ),
            LibfabricError::NotFenced { provider } => write!(
                f,
                "libfabric's provider {provider} may execute verbs while the memory server does not run, so the memory \
                 server cannot stop those of a compute server that has lost its lease: use tcp;ofi_rxm"
            ),
            LibfabricError::OtherProvider { first, other } => write!(
                f,
                "memory server 0 uses libfabric's provider {first}, another one uses {other}: start all with the same \
                 --provider"
            ),
            LibfabricError::Call { doing, code, text } => {
                write!(f, "libfabric cannot {doing}: {text} ({code})")
            }
        }
    }
}

/// Returns the text of the dynamic linker.
fn reason_of(error: &libloading::Error) -> String {
    let reason = std::error::Error::source(error);
    reason.map_or_else(|| error.to_string(), ToString::to_string)
}

impl std::error::Error for LibfabricError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LibfabricError::NotInstalled(error) => Some(error),
            _ => None,
        }
    }
}
