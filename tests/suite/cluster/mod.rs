//! Tests against a real kube-apiserver 1.36 with NodeRestriction. Without a control plane they are
//! reported as ignored; `just control-plane` builds one.

pub(crate) mod control_plane;
pub(crate) mod nodegate;
pub(crate) mod requester;

mod actors;
mod certificates;
pub(crate) mod commands;
mod conditions;
mod expressions;
mod faults;
mod fence;
mod forgery;
mod gate;
mod governance;
pub(crate) mod guard;
mod guarded;
mod hardware;
mod identity;
mod inventory;
mod isolation;
mod join;
pub(crate) mod keeping;
mod large_nodes;
mod last_good;
mod leaderless;
mod limits;
mod migrations;
mod mutual_tls;
mod native;
mod node_fields;
mod outage;
mod policies;
mod race;
mod random;
mod reference;
mod replica;
mod reports;
mod reviews;
mod rolling;
mod scheduling;
mod sight;
mod start;
mod told;
mod traces;
mod upgrade;
mod verdicts;
