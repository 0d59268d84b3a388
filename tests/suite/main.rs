//! The one test binary: linking once is what keeps the tests fast to build.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod admission;
mod callers;
mod cases;
mod certs;
mod chart_values;
mod check;
mod cleanup;
mod completions;
mod crowd;
mod demo;
mod disk;
mod docs;
mod explain;
mod export;
mod export_autoscaler;
mod failures;
mod firstboot;
mod fuzzing;
mod generated;
mod history;
mod hostile;
mod hostile_bodies;
mod image;
mod init;
mod inventory;
mod inventory_sources;
mod large_nodes;
mod layering;
mod man;
mod metrics;
mod migrating;
mod monitoring;
mod output;
mod page;
mod pending;
mod plan;
mod plugin;
mod probe;
mod project;
mod release;
mod reload;
mod report;
mod reports;
mod runner;
mod security;
mod serve;
mod terminal;
mod tls;
mod top;
mod traces;
mod workflows;
mod wrong_policies;

#[path = "../cluster/control_plane/programs.rs"]
#[allow(dead_code, reason = "the cluster tests use the rest")]
mod programs;
#[path = "../shared/mod.rs"]
mod shared;

use shared::{authority, cmdb, collector, eventually, required};
