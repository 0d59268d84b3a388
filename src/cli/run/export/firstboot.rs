//! `nodegate export firstboot`: what a node needs to register with extra labels.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::ValueEnum as _;

use crate::cli::shared::output::{self, Format};
use crate::cli::{Findings, run::firstboot::unit_name, shared::whole_file};
use nodegate_onnode::firstboot::files::{Download, NodeSetup};
use nodegate_onnode::firstboot::{ExtraLabels, Label, Native, native};

/// Labels that a kubelet registers its node with, in the form that the machine takes
///
/// A label that a kubelet may not set is an error that says why.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportFirstbootArgs {
    /// Labels, as KEY=VALUE,KEY=
    #[arg(long, value_name = "LABELS", required_unless_present = "only")]
    labels: Option<String>,
    /// What to write
    #[arg(long, value_enum)]
    format: FirstbootFormat,
    /// The unit that starts the kubelet, k3s or RKE2
    #[arg(long, default_value = "kubelet.service", value_parser = unit_name)]
    unit: String,
    /// Where nodegate is on the node
    #[arg(long, value_name = "FILE", default_value = "/usr/local/bin/nodegate", value_parser = helper)]
    helper: String,
    /// Formats ignition and cloud-init: download nodegate from here to --helper
    #[arg(long, value_name = "URL", requires = "helper_sha256", value_parser = url)]
    helper_url: Option<String>,
    /// SHA-256 of the download
    #[arg(long, value_name = "HEX", requires = "helper_url", value_parser = sha256)]
    helper_sha256: Option<String>,
    /// Write only a part: infra for all nodes, labels for the nodes of one pool
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Format machineconfig: the role, which is the name of the MachineConfigPool
    #[arg(long, default_value = "worker", value_parser = crate::cli::run::export::object_name)]
    role: String,
    /// Name of the object [default: 99-ROLE-nodegate-firstboot for machineconfig, otherwise default]
    #[arg(long, value_parser = crate::cli::run::export::object_name)]
    name: Option<String>,
    /// Format drop-in: write the files below this directory instead of printing them
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The service and the drop-in that starts it
    Infra,
    /// The drop-in with the labels
    Labels,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FirstbootFormat {
    /// Files of systemd
    DropIn,
    /// A MachineConfig of OpenShift
    Machineconfig,
    /// An Ignition configuration
    Ignition,
    /// A #cloud-config
    CloudInit,
    /// A JoinConfiguration of kubeadm
    Kubeadm,
    /// A file of the configuration of k3s
    K3s,
    /// A file of the configuration of RKE2
    Rke2,
    /// A patch of a machine configuration of Talos
    Talos,
    /// A patch of a NodePool of Karpenter
    Karpenter,
    /// A KubeadmConfigTemplate of Cluster API
    ClusterApi,
}

impl FirstbootFormat {
    /// The program that has a setting for labels, if there is one.
    fn native(self) -> Option<Native> {
        match self {
            Self::DropIn | Self::Machineconfig | Self::Ignition | Self::CloudInit => None,
            Self::Kubeadm => Some(Native::Kubeadm),
            Self::K3s => Some(Native::K3s),
            Self::Rke2 => Some(Native::Rke2),
            Self::Talos => Some(Native::Talos),
            Self::Karpenter => Some(Native::Karpenter),
            Self::ClusterApi => Some(Native::ClusterApi),
        }
    }
}

fn helper(text: &str) -> Result<String, String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.starts_with('/') && !text.ends_with('/') && text.chars().all(is_allowed) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is not a path that a unit can name; use an absolute path of letters, digits, '/', '.', '_' and '-'"
    ))
}

fn url(text: &str) -> Result<String, String> {
    let is_allowed = |c: char| c.is_ascii_graphic() && !"\"'\\`<>{}|^".contains(c);
    if text.starts_with("https://") && text.chars().all(is_allowed) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not an https URL; write https://HOST/PATH"))
}

fn sha256(text: &str) -> Result<String, String> {
    if text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit()) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(format!("{text:?} is not a SHA-256; write the 64 hexadecimal digits that sha256sum prints"))
}

pub(super) fn run(args: &ExportFirstbootArgs) -> anyhow::Result<Findings> {
    let labels = labels(args)?;
    if let Some(program) = args.format.native() {
        ensure!(args.only.is_none(), "--only: {} has no parts; leave it out", name_of(args.format));
        let (comment, value) =
            native(program, args.name.as_deref().unwrap_or("default"), &labels).map_err(anyhow::Error::msg)?;
        let yaml = output::structured(Format::Yaml, &value)?;
        output::print(&format!(
            "# Generated by: nodegate export firstboot --format {}\n# {comment}\n{yaml}",
            name_of(args.format)
        ))?;
        return Ok(Findings::None);
    }
    let setup = setup(args, labels)?;
    match args.format {
        FirstbootFormat::Ignition => output::print(&output::structured(Format::Json, &setup.ignition())?)?,
        FirstbootFormat::Machineconfig => {
            let suffix = match args.only {
                Some(Part::Labels) => "labels",
                Some(Part::Infra) | None => "firstboot",
            };
            let name = args.name.clone().unwrap_or_else(|| format!("99-{}-nodegate-{suffix}", args.role));
            output::print(&output::structured(Format::Yaml, &setup.machine_config(&name, &args.role))?)?;
        }
        FirstbootFormat::CloudInit => {
            output::print(&format!("#cloud-config\n{}", output::structured(Format::Yaml, &setup.cloud_config())?))?;
        }
        _ => drop_ins(args, &setup)?,
    }
    Ok(Findings::None)
}

fn name_of(format: FirstbootFormat) -> String {
    format.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn labels(args: &ExportFirstbootArgs) -> anyhow::Result<Vec<Label>> {
    if args.only == Some(Part::Infra) {
        ensure!(args.labels.is_none(), "--labels: with --only infra no labels are written; leave one of both out");
        return Ok(Vec::new());
    }
    let ExtraLabels { labels, refused } = ExtraLabels::parse(args.labels.as_deref().unwrap_or_default());
    ensure!(refused.is_empty(), "--labels: {}", refused.join("; "));
    ensure!(!labels.is_empty(), "--labels has no label; write KEY=VALUE,KEY=");
    Ok(labels)
}

fn setup(args: &ExportFirstbootArgs, labels: Vec<Label>) -> anyhow::Result<NodeSetup> {
    let downloads = matches!(args.format, FirstbootFormat::Ignition | FirstbootFormat::CloudInit);
    ensure!(
        args.helper_url.is_none() || downloads,
        "--helper-url: the format {} downloads nothing; put nodegate into the image of the node and name it with --helper",
        name_of(args.format)
    );
    let download =
        args.helper_url.clone().zip(args.helper_sha256.clone()).map(|(url, sha256)| Download { url, sha256 });
    let infrastructure = args.only != Some(Part::Labels);
    if infrastructure && download.is_none() {
        output::note(&format!(
            "note: the node needs nodegate as {}; without it the kubelet starts without the extra labels",
            args.helper
        ));
    }
    Ok(NodeSetup { unit: args.unit.clone(), helper: args.helper.clone(), download, infrastructure, labels })
}

/// Prints the files, each after its path, or writes them.
fn drop_ins(args: &ExportFirstbootArgs, setup: &NodeSetup) -> anyhow::Result<()> {
    let mut printed = String::new();
    for file in setup.files() {
        let path = setup.path(&file);
        match &args.directory {
            None => printed.push_str(&format!("# {path}\n{}\n", file.contents)),
            Some(directory) => {
                let below = Path::new(path.trim_start_matches('/'));
                ensure_no_links(directory, below)?;
                write(&directory.join(below), &file.contents)?;
            }
        }
    }
    output::print(&printed)
}

/// Refuses a folder below the directory that is a link: in the file system of an image, it leads to a folder of this machine.
fn ensure_no_links(directory: &Path, below: &Path) -> anyhow::Result<()> {
    for folder in below.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
        let folder = directory.join(folder);
        ensure!(
            !folder.is_symlink(),
            "--directory: {} is a symbolic link, which may lead out of the directory; replace it with a folder, or choose another directory",
            folder.display()
        );
    }
    Ok(())
}

fn write(path: &Path, contents: &str) -> anyhow::Result<()> {
    let failed = || format!("--directory: could not write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).with_context(failed)?;
    whole_file::replace(path, contents, None).with_context(failed)
}
