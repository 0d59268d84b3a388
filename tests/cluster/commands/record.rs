//! `nodegate verify --record` writes what the API server knows of kubelets, without what is private.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};
use serde_json::{Value, json};

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::machines::Provisioners;
use super::super::pools::{Credential, join, post_as_kubelet};
use super::{Ran, finish, run};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const INSTANCE: &str = "i-0abc1234def567890";
const ON_AKS: &str = "aks-payments-12345678-vmss00000a";
const ON_EKS: &str = "ip-10-0-1-119.eu-central-1.compute.internal";
const PRIVATE: [&str; 8] =
    ["payments", "0abc1234def567890", "10-0-1-119", "10.0.1.119", "111122223333", "MII", "Basic", "bearer-7f3e"];

fn of_machine(name: &str, provider_id: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"team": "payments"},
            "annotations": {"example.com/credential": "Basic bearer-7f3e"}},
        "spec": {"providerID": provider_id},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.1.119"}], "capacity": {"cpu": "8"}}})
}

/// A kubelet asks for its serving certificate.
async fn ask(plane: &ControlPlane, name: &str, credential: Credential<'_>) {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::OrganizationName, DnValue::PrintableString("system:nodes".try_into().unwrap()));
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{name}"));
    params.subject_alt_names.push(SanType::DnsName(name.try_into().unwrap()));
    let asked = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"generateName": "csr-"},
        "spec": {"request": BASE64.encode(asked), "signerName": "kubernetes.io/kubelet-serving", "usages": ["digital signature", "server auth"]}});
    post_as_kubelet(plane, REQUESTS, name, &request, credential).await.unwrap();
}

fn record(plane: &ControlPlane, directory: &Path, more: &[&str]) -> Ran {
    run(plane, None, &[&["verify", "--record", directory.to_str().unwrap()], more].concat())
}

/// The files of a recording, by name.
fn files(directory: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let read = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path()).unwrap();
    entries.map(|entry| (entry.file_name().into_string().unwrap(), read(entry))).collect()
}

#[tokio::test]
async fn what_is_known_of_kubelets_is_recorded_without_what_is_private() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let provisioners = Provisioners::install(plane);
    let directory = tempfile::tempdir().unwrap();
    let nothing = record(plane, &directory.path().join("nothing"), &[]);
    assert!(nothing.code == 2 && nothing.errors.contains("let a node join"), "{}", nothing.errors);
    assert!(!directory.path().join("nothing").exists());

    let provider_id = format!("aws:///eu-central-1a/{INSTANCE}");
    let arn = format!("arn:aws:sts::111122223333:assumed-role/payments/{INSTANCE}");
    let extra = [("arn", arn.as_str()), ("sessionname", INSTANCE)];
    let on_eks = Credential { groups: &["system:bootstrappers"], extra: &extra };
    let nobody = Credential::default();
    provisioners.claim("payments-x", "payments", &provider_id);
    for (name, id, credential) in
        [(ON_EKS, &*provider_id, on_eks), (INSTANCE, &provider_id, nobody), (ON_AKS, "azure:///x/0", nobody)]
    {
        join(plane, &of_machine(name, id), credential, false).await.unwrap();
        ask(plane, name, credential).await;
    }

    let all = directory.path().join("all");
    let printed = record(plane, &all, &[]).with(0);
    assert!(
        printed.contains(ON_EKS) && printed.contains("a request to signer kubernetes.io/kubelet-serving"),
        "{printed}"
    );
    let files = files(&all);
    assert_eq!(files.len(), 4, "{files:?}");
    let private = |text: &str| PRIVATE.into_iter().find(|private| text.contains(private));
    let found: Vec<_> = files.iter().filter_map(|(name, text)| private(&format!("{name}{text}"))).collect();
    assert!(found.is_empty(), "{found:?} in {files:#?}");

    let review = files.iter().find(|(name, _)| name.starts_with("ip-")).unwrap().1;
    let review: Value = serde_json::from_str(review).unwrap();
    let (user, object) = (&review["request"]["userInfo"], &review["request"]["object"]);
    let instance = user["extra"]["sessionname"][0].as_str().unwrap();
    assert_eq!(object["spec"]["providerID"], format!("aws:///eu-central-1a/{instance}"));
    assert!(user["extra"]["arn"][0].as_str().unwrap().ends_with(&format!("/{instance}")), "{user}");
    assert_eq!(user["groups"], json!(["system:nodes", "system:authenticated", "system:bootstrappers"]));

    // What was recorded is tested as it was, and can be planned.
    let test = &files["test.yaml"];
    let proofs = ["proven-by: name", "proven-by: machine"].map(|proof| test.matches(proof).count());
    assert_eq!(proofs, [1, 1], "{test}");
    let nodegate = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        finish(command.args(arguments).current_dir(&all).stdin(Stdio::null())).with(0)
    };
    assert!(nodegate(&["test", "."]).contains("3 passed, 0 failed"));
    let name = files.keys().find(|name| name.starts_with("aks-")).unwrap();
    assert!(nodegate(&["plan", name]).contains("1 node"), "{}", nodegate(&["plan", name]));

    let again = record(plane, &all, &[]);
    assert!(again.code == 2 && again.errors.contains("the directory is not empty"), "{}", again.errors);

    // On a node, with the credential of its kubelet.
    let file = plane.kubeconfig_file(
        "kubelet",
        Some((&format!("system:node:{ON_AKS}"), &["system:nodes", "system:authenticated"])),
    );
    let one = directory.path().join("one");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["verify", "--node", ON_AKS, "--record"]).arg(&one).arg("--kubeconfig").arg(file).stdin(Stdio::null());
    let ran = finish(&mut command);
    assert!(ran.errors.contains("could not list the machines"), "{}", ran.errors);
    let printed = ran.with(0);
    assert!(printed.contains("itself") && printed.contains("wrote 2 files"), "{printed}");
}
