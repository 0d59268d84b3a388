use k8s_openapi::ByteString;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};

use super::request::Asked;
use super::*;
use nodegate_base::text::hexadecimal;
use nodegate_policy::api::state::BootstrapDocument;

/// A certificate for a user, and its fingerprint as the API server writes it.
fn certificate(user: &str) -> (String, String) {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, user);
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate.der());
    let fingerprint = hexadecimal(&Fingerprint::try_from(digest.as_ref()).unwrap());
    (certificate.pem(), fingerprint)
}

/// A request of `spec` whose certificate is for this user.
fn request(user: &str, spec: &Value) -> (CertificateSigningRequest, String) {
    let (pem, fingerprint) = certificate(user);
    let mut whole = json!({"request": "", "signerName": SIGNER, "usages": ["client auth"]});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata = json!({"name": "csr", "creationTimestamp": "2026-11-27T10:00:00Z"});
    let mut request: CertificateSigningRequest =
        serde_json::from_value(json!({"metadata": metadata, "spec": whole, "status": {}})).unwrap();
    request.status.as_mut().unwrap().certificate = Some(ByteString(pem.into_bytes()));
    (request, fingerprint)
}

#[test]
fn a_request_says_who_asked_and_a_renewal_with_which_certificate() {
    let token = json!({"username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers", "pool:gpu", "system:authenticated"]});
    let (asked, fingerprint_of_first) = request("system:node:gpu-1", &token);
    let issued = Issued::read(&asked).unwrap();
    assert_eq!((&*issued.node, hexadecimal(&issued.certificate)), ("gpu-1", fingerprint_of_first.clone()));
    let Asked::By(Some(bootstrapper)) = &issued.asked else { panic!("{issued:?}") };
    assert_eq!(bootstrapper.user(), "system:bootstrap:abcdef");
    assert_eq!(bootstrapper.groups().collect::<Vec<_>>(), ["pool:gpu"]);

    let with = |id: &[&str]| json!({"username": "system:node:gpu-1", "extra": {"authentication.kubernetes.io/credential-id": id}});
    let id = format!("X509SHA256={fingerprint_of_first}");
    let renewing = |spec: &Value| Issued::read(&request("system:node:gpu-1", spec).0).unwrap().asked;
    assert_eq!(renewing(&with(&[&id])), Asked::Renewing(Some(issued.certificate)));
    for unknown in [json!({"username": "system:node:gpu-1"}), with(&[]), with(&[&id, &id]), with(&["JTI=1"])] {
        assert_eq!(renewing(&unknown), Asked::Renewing(None), "{unknown}");
    }
    // A kubelet that asks for the certificate of another node renews nothing.
    assert!(matches!(renewing(&json!({"username": "system:node:cpu-1"})), Asked::By(Some(_))));
}

#[test]
fn a_command_that_watches_nothing_learns_who_asked_from_a_list() {
    let (asked, of_first) = request("system:node:gpu-1", &json!({"username": "system:bootstrap:abcdef"}));
    let id = json!({"authentication.kubernetes.io/credential-id": [format!("X509SHA256={of_first}")]});
    let (renewal, of_second) = request("system:node:gpu-1", &json!({"username": "system:node:gpu-1", "extra": id}));
    let certificates = KubeletCertificates::of_requests([&renewal, &asked]);
    for certificate in [of_first, of_second] {
        assert_eq!(certificates.bootstrapper(&certificate, None).unwrap().user(), "system:bootstrap:abcdef");
    }
}

#[test]
fn requests_of_other_signers_for_other_users_or_without_a_certificate_say_nothing() {
    let spec = json!({"username": "system:bootstrap:abcdef"});
    for user in ["system:node:", "gpu-1", "system:serviceaccount:a:b"] {
        assert_eq!(Issued::read(&request(user, &spec).0), None, "{user}");
    }
    let (mut other, _) = request("system:node:gpu-1", &spec);
    "kubernetes.io/kube-apiserver-client".clone_into(&mut other.spec.signer_name);
    assert_eq!(Issued::read(&other), None);
    let (mut pending, _) = request("system:node:gpu-1", &spec);
    pending.status.as_mut().unwrap().certificate = None;
    assert_eq!(Issued::read(&pending), None);
    pending.status.as_mut().unwrap().certificate = Some(ByteString(b"-----BEGIN CERTIFICATE-----\n".to_vec()));
    assert_eq!(Issued::read(&pending), None);
}

fn bootstrapper(token: &str) -> Arc<Bootstrapper> {
    Arc::new(Bootstrapper::new(&format!("system:bootstrap:{token}"), [format!("pool:{token}").as_str()]).unwrap())
}

fn number(number: u16) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint[..2].copy_from_slice(&number.to_be_bytes());
    fingerprint
}

fn name(of: u16) -> String {
    hexadecimal(&number(of))
}

/// A certificate of a node, asked for by a token.
fn first(certificate: u16, node: &str, token: &str) -> Issued {
    let asked = Asked::By(Some(bootstrapper(token)));
    Issued { certificate: number(certificate), node: node.into(), asked, at: certificate.into() }
}

fn renewal(certificate: u16, node: &str, earlier: u16) -> Issued {
    let asked = Asked::Renewing(Some(number(earlier)));
    Issued { certificate: number(certificate), node: node.into(), asked, at: certificate.into() }
}

fn known(all: impl IntoIterator<Item = Issued>) -> Known {
    let mut known = Known::default();
    all.into_iter().for_each(|issued| assert!(known.take_up(issued)));
    known
}

fn recorded(token: &str, certificates: &[u16]) -> Bootstrap {
    let recorded = BootstrapDocument {
        user: format!("system:bootstrap:{token}").into(),
        groups: [format!("pool:{token}").into()].into(),
        certificates: certificates.iter().map(|one| name(*one)).collect(),
    };
    recorded.into()
}

fn saved(bootstrapped_by: &[Bootstrap]) -> SavedState {
    SavedState { bootstrapped_by: bootstrapped_by.into(), ..SavedState::default() }
}

#[test]
fn renewals_descend_from_what_is_known_or_recorded_and_from_nothing_else() {
    let mut known = known([first(1, "a", "gpu"), renewal(2, "a", 1), renewal(3, "a", 2), renewal(9, "b", 8)]);
    let of = |known: &Known, certificate, saved: Option<&SavedState>| known.bootstrapper(number(certificate), saved);
    for certificate in 1..=3 {
        assert_eq!(of(&known, certificate, None), Some(bootstrapper("gpu")), "{certificate}");
    }
    assert_eq!(of(&known, 4, None), None);
    assert_eq!(of(&known, 9, None), None, "its first request was deleted before");
    assert_eq!(of(&known, 9, Some(&saved(&[recorded("cpu", &[8])]))), Some(bootstrapper("cpu")));
    assert_eq!(of(&known, 9, Some(&saved(&[recorded("cpu", &[7])]))), None);
    // Two that say of each other that they are renewals, which no signer makes, end.
    known.take_up(renewal(20, "c", 21));
    known.take_up(renewal(21, "c", 20));
    assert_eq!(of(&known, 20, None), None);
}

#[test]
fn who_asked_for_a_certificate_never_changes_and_outlives_its_request() {
    let mut known = known([first(1, "a", "gpu")]);
    assert!(!known.take_up(first(1, "a", "cpu")), "somebody copied the certificate into a request of their own");
    assert_eq!(known.bootstrapper(number(1), None), Some(bootstrapper("gpu")));
    known.begin_listing();
    known.take_up(first(2, "b", "cpu"));
    known.end_listing();
    assert_eq!(known.bootstrapper(number(1), None), Some(bootstrapper("gpu")), "the listing did not have it");
    // What is kept of deleted requests has an end, and those that are there do not count.
    for at in 0..9000 {
        known.take_up(first(1000 + at, "c", "cpu"));
        known.is_deleted(number(1000 + at));
    }
    assert_eq!(known.bootstrapper(number(1), None), None);
    assert_eq!(known.bootstrapper(number(2), None), Some(bootstrapper("cpu")));
    assert_eq!(known.bootstrapper(number(9999), None), Some(bootstrapper("cpu")));
    let newest = known.for_node("c", None);
    assert_eq!((newest.len(), &*newest[63].certificate), (64, &*name(9999)));
}

#[test]
fn who_asked_for_many_certificates_is_kept_once_until_the_last_of_them_is_forgotten() {
    let mut known = known((0..9000).map(|at| first(at, "a", if at < 8999 { "gpu" } else { "cpu" })));
    let asked = |known: &Known, at| known.bootstrapper(number(at), None);
    assert!(Arc::ptr_eq(&asked(&known, 1).unwrap(), &asked(&known, 2).unwrap()));
    assert_eq!(known.askers.len(), 2);
    // The request with the other token is deleted first, so it is forgotten first.
    (0..9000).rev().for_each(|at| known.is_deleted(number(at)));
    assert_eq!(asked(&known, 8999), None);
    assert_eq!((known.askers.len(), asked(&known, 1)), (1, Some(bootstrapper("gpu"))));
}

#[test]
fn a_record_has_the_certificate_of_the_node_and_what_descends_from_recorded_ones() {
    let all = [first(1, "a", "gpu"), first(2, "a", "cpu"), renewal(3, "a", 1), renewal(4, "a", 2), renewal(5, "a", 3)];
    let known = known(all);
    let record = known.to_record("a", &name(1), &SavedState::default());
    assert_eq!(*record, [recorded("gpu", &[1, 3, 5])], "nothing of another machine with a certificate for this name");
    let stored = saved(&record);
    assert_eq!(known.to_record("a", &name(1), &stored), record, "the same again");
    // It creates the node, and is what the node belongs to.
    let record = known.to_record("a", &name(2), &stored);
    assert_eq!(*record, [recorded("gpu", &[1, 3, 5]), recorded("cpu", &[2])]);
    // Of a certificate that nothing is known of, the record says nothing new.
    assert_eq!(known.to_record("a", &name(77), &stored), stored.bootstrapped_by);
    // The first one again, whose requests are gone.
    let later = Known::default();
    let record = later.to_record("a", &name(5), &saved(&record));
    assert_eq!(*record, [recorded("cpu", &[2]), recorded("gpu", &[1, 3, 5])]);
}

#[test]
fn a_record_stays_small_and_keeps_what_the_node_was_created_with() {
    let chain = std::iter::once(first(1, "a", "gpu")).chain((2..=9).map(|at| renewal(at, "a", at - 1)));
    let known = known(chain);
    let record = known.to_record("a", &name(1), &SavedState::default());
    assert_eq!(*record, [recorded("gpu", &[1, 7, 8, 9])]);
    assert_eq!(known.to_record("a", &name(1), &saved(&record)), record, "those that were displaced do not come back");
    let others: Vec<Bootstrap> = (0..3).map(|at| recorded(&format!("t{at}"), &[100 + at])).collect();
    let record = known.to_record("a", &name(9), &saved(&others));
    assert_eq!(*record, [others[1].clone(), others[2].clone(), recorded("gpu", &[9])]);
}
