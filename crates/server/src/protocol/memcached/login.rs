//! Parses the request with which a memcached client authenticates: a `set` of any key, whose value is a name and a password.
//!
//! ```text
//!   set any 0 0 11\r\nanna secret\r\n  ─▶  STORED, or CLIENT_ERROR
//! ```
//!
//! The invariants of [`super::parse`] hold here too. In addition, a value is refused that is longer than
//! [`LOGIN_BYTES_MAX`], so that a client without a password uses little memory.

use memchr::memchr;

use super::parse::{LINE_BYTES_MAX, Words, u32_of};

/// Most bytes of a name and a password together.
const LOGIN_BYTES_MAX: usize = 4096;

pub(crate) const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";
pub(crate) const WRONG_LOGIN: &str = "CLIENT_ERROR authentication failure";

/// Result of [`read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginStep<'a> {
    /// A complete request. `used` bytes of the input belong to it.
    Login {
        name: &'a [u8],
        password: &'a [u8],
        used: usize,
    },
    /// Another request, or a malformed one: the reply `text`. `used` bytes belong to it, and `skip` bytes are discarded after
    /// them as they arrive.
    Refused {
        text: &'static str,
        used: usize,
        skip: usize,
    },
    /// An incomplete request, which needs this many bytes; 0 if unknown.
    Part { needed: usize },
    /// Not memcached's protocol: the connection is closed.
    Hangup,
}

/// Parses the request at the start of `input`, from a client that has not authenticated.
pub(crate) fn read(input: &[u8]) -> LoginStep<'_> {
    let Some(end) = memchr(b'\n', input) else {
        return match input.len() > LINE_BYTES_MAX {
            true => LoginStep::Hangup,
            false => LoginStep::Part { needed: 0 },
        };
    };
    let refused = |text, used, skip| LoginStep::Refused { text, used, skip };
    let next = end + 1;
    let mut words = Words::of(&input[..end]);
    let (verb, bytes) = (words.next(), words.nth(3));
    let bytes = bytes.filter(|_| verb == Some(b"set")).and_then(u32_of);
    let Some(bytes) = bytes.map(|bytes| bytes as usize) else {
        return refused(UNAUTHENTICATED, next, 0);
    };
    if bytes > LOGIN_BYTES_MAX {
        return refused(WRONG_LOGIN, next, bytes + 2);
    }
    let used = next + bytes + 2;
    let Some(value) = input.get(next..used) else {
        return LoginStep::Part { needed: used };
    };
    let [value @ .., b'\r', b'\n'] = value else {
        return refused("CLIENT_ERROR bad command line termination", used, 0);
    };
    let mut words = Words::of(value);
    match (words.next(), words.next()) {
        (Some(name), Some(password)) => LoginStep::Login {
            name,
            password,
            used,
        },
        _ => refused("CLIENT_ERROR bad authentication token format", used, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::{LoginStep, UNAUTHENTICATED, WRONG_LOGIN, read};

    fn refused(text: &'static str, used: usize, skip: usize) -> LoginStep<'static> {
        LoginStep::Refused { text, used, skip }
    }

    #[test]
    fn a_login_is_a_set_of_any_key() {
        let login = |used| LoginStep::Login {
            name: b"anna",
            password: b"secret",
            used,
        };
        assert_eq!(read(b"set k 0 0 11\r\nanna secret\r\n"), login(27));
        assert_eq!(
            read(b"set k x y 12 noreply\n anna secret\r\nget"),
            login(35)
        );
        for cut in 1..27 {
            let part = read(&b"set k 0 0 11\r\nanna secret\r\n"[..cut]);
            let needed = if cut < 14 { 0 } else { 27 };
            assert_eq!(part, LoginStep::Part { needed }, "{cut}");
        }
    }

    #[test]
    fn other_requests_are_refused_and_consumed() {
        assert_eq!(read(b"get k\r\nget"), refused(UNAUTHENTICATED, 7, 0));
        assert_eq!(read(b"set k 0 0\r\n"), refused(UNAUTHENTICATED, 11, 0));
        assert_eq!(read(b"set k 0 0 x\r\n"), refused(UNAUTHENTICATED, 13, 0));
        let format = "CLIENT_ERROR bad authentication token format";
        assert_eq!(read(b"set k 0 0 4\r\nanna\r\n"), refused(format, 19, 0));
        let end = "CLIENT_ERROR bad command line termination";
        assert_eq!(read(b"set k 0 0 4\r\nanna secret\r\n"), refused(end, 19, 0));
        assert_eq!(read(b"set k 0 0 5000\r\n"), refused(WRONG_LOGIN, 16, 5002));
        assert_eq!(read(&[b'x'; 2049]), LoginStep::Hangup);
    }
}
