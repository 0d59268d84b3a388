//! The examples of this repository, exported and applied.
