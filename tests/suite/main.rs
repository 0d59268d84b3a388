//! The one test binary: linking once is what keeps the tests fast to build.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod admission;
mod authority;
mod callers;
mod cases;
mod chart;
mod check;
mod cleanup;
mod cluster;
mod completions;
mod crowd;
mod docs;
mod explain;
mod export;
mod firstboot;
mod fuzzing;
mod generated;
mod history;
mod hostile;
mod image;
mod init;
mod large_nodes;
mod layering;
mod man;
mod output;
mod plan;
mod plugin;
mod report;
mod runner;
mod security;
mod serve;
mod terminal;
mod tls;
mod wrong_policies;
