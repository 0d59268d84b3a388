//! The tests that need a cluster, or programs besides Rust: a real kube-apiserver with NodeRestriction, helm, promtool. They are
//! a target of their own, which `cargo test` does not compile; `just cluster-tests` runs them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod actors;
mod autoscaling;
mod barrier;
mod bootstrap;
mod certificates;
mod chart;
mod cluster_autoscaler;
mod commands;
mod conditions;
mod control_plane;
mod dra;
mod expressions;
mod faults;
mod fence;
mod forgery;

mod governance;
mod guard;
mod guarded;
mod hardware;
mod identity;
mod inventory;
mod isolation;
mod join;
mod karpenter;
mod keeping;
mod kueue;
mod large_nodes;
mod last_good;
mod leaderless;
mod limits;
mod machines;
mod migrations;
mod mutual_tls;
mod native;
mod node_fields;
mod node_status;
mod nodegate;
mod outage;
mod policies;
mod policy_gates;
mod pool_memory;
mod pools;
mod prometheus;
mod proofs;
mod publishers;
mod race;
mod random;
mod readiness;
mod reference;
mod replica;
mod reports;
mod requester;
mod reviews;
mod rolling;
mod scheduling;
mod sight;
mod start;
mod static_guard;
mod templates;
mod told;
mod top;
mod traces;
mod tutorials;
mod upgrade;
mod verdicts;
mod versions;

#[path = "../shared/mod.rs"]
mod shared;

use control_plane::programs;
use shared::{authority, cmdb, collector, eventually, required};
