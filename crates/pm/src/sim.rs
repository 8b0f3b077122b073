//! The simulated twin.
