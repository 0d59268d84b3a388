//! What the API server asks of annotations.
//!
//! Sources: `k8s.io/apimachinery/pkg/api/validation/objectmeta.go` (`ValidateAnnotations`, `TotalAnnotationSizeLimitB`) and
//! `pkg/apis/core/validation/validation.go` (`ValidateNodeSpecificAnnotations`).

/// Maximum total size of the annotations of an object, keys and values, in bytes.
pub const ANNOTATIONS_MAX: usize = 256 * 1024;

/// Annotations of nodes that the API server parses as JSON, and refuses if they are invalid.
pub(crate) const READ_BY_THE_API_SERVER: [&str; 2] =
    ["scheduler.alpha.kubernetes.io/preferAvoidPods", "scheduler.alpha.kubernetes.io/taints"];
