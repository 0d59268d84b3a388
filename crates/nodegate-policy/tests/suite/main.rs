//! Tests of the public interface: cases from files, and properties.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)] // A test may fail, and read a file.

mod cases;
mod evaluation;
mod exported;
mod fence;
mod guard;
mod guides;
mod init;
mod model;
mod native;
mod pending;
mod properties;
mod random;
mod set;
mod translate;
mod verdicts;
