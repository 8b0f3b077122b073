//! The names and passwords of memcached clients: the file of memcached's option `--auth-file`.
//!
//! ```text
//!   file of lines name:password
//!        │ read at the start, and at SIGHUP
//!        ▼
//!   SHA-256 of each name with its password ◀── compared with ── set any 0 0 11\r\nname secret\r\n
//! ```
//!
//! # Invariants
//! SRV-CRED-1  A file that cannot be read, or that is not valid, leaves the credentials as they were.
//! SRV-CRED-2  How long a comparison takes depends on the lengths of the given name and password and on the number of lines,
//!     not on which line matches or how much of it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::lock::lock;
use crate::settings_error::SettingsError;
use crate::state::users::PasswordHash;

/// Most bytes of the file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The credentials of memcached clients, and the file that they come from.
pub(crate) struct MemcachedCredentials {
    file: PathBuf,
    /// Hashes of the names with their passwords.
    hashes: Mutex<Vec<PasswordHash>>,
}

impl MemcachedCredentials {
    /// Returns the credentials of `file`, which is not read yet: until [`Self::load`] no client is accepted.
    pub(crate) fn new(file: PathBuf) -> MemcachedCredentials {
        MemcachedCredentials {
            file,
            hashes: Mutex::default(),
        }
    }

    /// The path of the file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Reads the file. Clients that have authenticated before stay authenticated. Returns the number of lines.
    ///
    /// # Errors
    /// [`SettingsError`], with the path and the line, if the file cannot be read or is not valid (SRV-CRED-1).
    pub(crate) fn load(&self) -> Result<usize, SettingsError> {
        let hashes = read_file(&self.file).map_err(|error| error.of(self.file.display()))?;
        let count = hashes.len();
        *lock(&self.hashes) = hashes;
        Ok(count)
    }

    /// Whether the file has `name` with `password`.
    pub(crate) fn accepts(&self, name: &[u8], password: &[u8]) -> bool {
        hash(name, password).is_among(&lock(&self.hashes)) // SRV-CRED-2
    }
}

/// Checks the file of [`ServerOptions::memcached_auth_file`](crate::ServerOptions::memcached_auth_file) before a server starts.
///
/// # Errors
/// [`SettingsError`], with the path and the line, if the file cannot be read or is not valid.
pub fn check(file: &Path) -> Result<(), SettingsError> {
    MemcachedCredentials::new(file.into()).load().map(drop)
}

fn read_file(path: &Path) -> Result<Vec<PasswordHash>, SettingsError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(SettingsError::from_cause)?;
    let mut file = file.take(FILE_BYTES_MAX + 1);
    file.read_to_end(&mut bytes)
        .map_err(|error: io::Error| SettingsError::from_cause(error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(SettingsError::new(format!(
            "the file is longer than {FILE_BYTES_MAX} bytes"
        )));
    }
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<Vec<PasswordHash>, SettingsError> {
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut hashes = Vec::new();
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let wrong = |why| SettingsError::new(why).of(format!("line {number}"));
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            return Err(wrong("it is not name:password"));
        };
        let (name, password) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || password.is_empty() {
            return Err(wrong("the name or the password is empty"));
        }
        if line.iter().any(|byte| matches!(byte, b' ' | 0)) {
            return Err(wrong(
                "a client cannot send a name or a password with a blank or a zero byte",
            ));
        }
        hashes.push(hash(name, password));
    }
    Ok(hashes)
}

/// Returns the hash of a name with its password. The length keeps `a:b`, `c` and `a`, `b:c` apart.
fn hash(name: &[u8], password: &[u8]) -> PasswordHash {
    let length = (name.len() as u64).to_le_bytes();
    PasswordHash::of(&[&length, name, password].concat())
}

#[cfg(test)]
mod tests {
    use super::{MemcachedCredentials, parse};

    fn problem(text: &[u8]) -> String {
        parse(text).err().unwrap().to_string()
    }

    #[test]
    fn a_line_that_no_client_could_give_is_refused_by_its_number() {
        assert_eq!(problem(b""), "line 1: it is not name:password");
        assert_eq!(problem(b"a:b\nc\n"), "line 2: it is not name:password");
        assert_eq!(problem(b"a:b\n\nc:d\n"), "line 2: it is not name:password");
        let empty = "line 1: the name or the password is empty";
        assert_eq!(problem(b":b\n"), empty);
        assert_eq!(problem(b"a:\r\n"), empty);
        let blank = "line 1: a client cannot send a name or a password with a blank or a zero byte";
        assert_eq!(problem(b"a:b c\n"), blank);
        assert_eq!(problem(b"a\0:b\n"), blank);
    }

    #[test]
    fn a_name_is_accepted_with_its_own_password_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("auth");
        std::fs::write(&path, "anna:secret\r\nbert:pass:word").unwrap();
        let credentials = MemcachedCredentials::new(path);
        assert!(!credentials.accepts(b"anna", b"secret"));
        assert_eq!(credentials.load().unwrap(), 2);
        assert!(credentials.accepts(b"anna", b"secret"));
        assert!(credentials.accepts(b"bert", b"pass:word"));
        assert!(!credentials.accepts(b"anna", b"pass:word"));
        assert!(!credentials.accepts(b"ann", b"asecret"));
        assert!(!credentials.accepts(b"bert", b"pass"));
    }

    #[test]
    fn a_file_that_is_not_valid_leaves_the_credentials_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("auth");
        std::fs::write(&path, "anna:secret\n").unwrap();
        let credentials = MemcachedCredentials::new(path.clone());
        credentials.load().unwrap();
        std::fs::write(&path, "bert:word\nno colon\n").unwrap();
        let problem = credentials.load().unwrap_err().to_string();
        assert!(problem.ends_with("auth: line 2: it is not name:password"));
        assert!(credentials.accepts(b"anna", b"secret"));
        assert!(!credentials.accepts(b"bert", b"word"));
        std::fs::write(&path, "a".repeat((64 << 10) + 1)).unwrap();
        let problem = credentials.load().unwrap_err().to_string();
        assert!(problem.ends_with("auth: the file is longer than 65536 bytes"));
    }
}
