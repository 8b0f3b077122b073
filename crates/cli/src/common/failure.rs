//! The reason for a non-zero exit.

/// Reason for a non-zero exit.
pub(crate) enum Failure {
    /// The command line is wrong (exit code 2).
    Usage(String),
    /// Standard output cannot be written (SIGPIPE, or exit code 1).
    Output(std::io::Error),
    /// The command failed (exit code 1).
    Failed {
        /// What failed.
        error: String,
        /// What the user can do, if known.
        hint: Option<String>,
    },
    /// The error is already printed, by the command-line parser or by a child process of this program. Holds the exit
    /// code.
    Told(i32),
}

impl Failure {
    /// Builds the failure of a command without a hint.
    pub(crate) fn failed(error: impl ToString) -> Failure {
        Failure::Failed {
            error: error.to_string(),
            hint: None,
        }
    }
}
