//! An I/O error with the operation that failed.

use std::{error, fmt, io};

/// An I/O error with a message that names the operation and includes the error's own message.
#[derive(Debug)]
struct ExplainedError {
    text: String,
    source: io::Error,
}

impl fmt::Display for ExplainedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl error::Error for ExplainedError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Returns an error of the same kind as `source`, with the message `text`.
pub(super) fn explained(source: io::Error, text: String) -> io::Error {
    io::Error::new(source.kind(), ExplainedError { text, source })
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn an_explained_error_keeps_its_kind_and_its_cause() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        let error = explained(full, "cannot grow".into());
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(error.to_string(), "cannot grow");
        let cause = error.source().and_then(|cause| cause.downcast_ref());
        let number = cause.and_then(io::Error::raw_os_error);
        assert_eq!(number, Some(libc::ENOSPC));
    }
}
