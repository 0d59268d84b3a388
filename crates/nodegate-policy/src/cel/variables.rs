//! The values of variables for an evaluation.

use nodegate_cel::{Budget, Paths, Value};

use super::excerpt::{self, Excerpt};

/// The inferred GPUs of a node. Unknown facts are omitted, and an expression that reads them fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuVariables<'a> {
    /// `nvidia`, `amd`, `intel`.
    pub vendor: Option<&'a str>,
    /// The model in lower case without the vendor.
    pub model: Option<&'a str>,
    /// The number of GPUs.
    pub count: Option<i64>,
    /// The source of these facts.
    pub source: Option<&'a str>,
}

/// The request, as the API server describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestVariables<'a> {
    /// `CREATE` or `UPDATE`.
    pub operation: &'a str,
    /// The node's name.
    pub name: &'a str,
    /// Empty for the node itself, else `status`.
    pub sub_resource: &'a str,
    /// Whether this is a dry run.
    pub dry_run: bool,
    /// The requester's user name.
    pub username: &'a str,
    /// The requester's uid, if it has one.
    pub uid: Option<&'a str>,
    /// The requester's groups.
    pub groups: Vec<&'a str>,
    /// What else the authenticator says of the requester, as JSON: an object of lists of strings.
    pub extra: Option<&'a str>,
}

/// The variable `request`: made once for all expressions of a review that read it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestValue<'a>(Value<'a>);

/// The variables of a node under review, without labels and taints.
#[derive(Clone, Debug)]
pub struct NodeVariables<'a> {
    node: Excerpt<'a>,
    gpu: Value<'a>,
    inventory: Option<Value<'a>>,
    identity: Option<Value<'a>>,
    devices: Option<Value<'a>>,
}

/// The pools that a node is proven to belong to, and what else is known of its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityVariables<'a> {
    /// The one with the strongest proof, and what that is; absent without a pool.
    pub strongest: Option<(&'a str, &'a str)>,
    /// All of them, sorted.
    pub pools: Vec<&'a str>,
    /// The instance as which the kubelet was authenticated; absent if it was not, or if that is not known.
    pub instance: Option<&'a str>,
    /// What is asserted about the node and contradicts its proof, sorted.
    pub contradictions: Vec<&'static str>,
}

/// The variables of evaluations.
///
/// One set can be used for any number of expressions. It borrows as much as possible: it needs a small
/// allocation for all labels and one for each taint, and copies no text.
#[derive(Clone, Debug)]
pub struct Variables<'a>(pub(super) nodegate_cel::Variables<'a>);

impl<'a> NodeVariables<'a> {
    /// Adds the inferred GPUs of the node; without this call they are unknown.
    #[must_use]
    pub fn with_gpu(mut self, gpu: &GpuVariables<'a>) -> Self {
        let texts = [("vendor", gpu.vendor), ("model", gpu.model), ("source", gpu.source)];
        let texts = texts.into_iter().filter_map(|(name, text)| text.map(|text| (name, Value::from(text))));
        self.gpu = Value::map(texts.chain(gpu.count.map(|count| ("count", Value::from(count)))));
        self
    }

    /// Adds the labels that inventories have for this node, possibly none. Without this call no
    /// inventory has answered, and an expression that uses `inventory` fails.
    #[must_use]
    pub fn with_inventory(mut self, labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.inventory = Some(texts(labels));
        self
    }

    /// Adds the pools of this node, possibly none. Without this call they are unknown, and an expression that uses `identity` fails.
    #[must_use]
    pub fn with_identity(mut self, identity: IdentityVariables<'a>) -> Self {
        let IdentityVariables { strongest, pools, instance, contradictions } = identity;
        let list = |texts: Vec<&'a str>| Value::from(texts.into_iter().map(Value::from).collect::<Vec<_>>());
        let strongest = strongest.map(|(pool, proof)| [("pool", Value::from(pool)), ("proof", Value::from(proof))]);
        let instance = instance.map(|instance| ("instance", Value::from(instance)));
        let lists = [("pools", list(pools)), ("contradictions", list(contradictions))];
        self.identity = Some(Value::map(lists.into_iter().chain(strongest.into_iter().flatten()).chain(instance)));
        self
    }

    /// Adds the devices of this node, a list in JSON of which expressions read `paths`. Without this call they are unknown, and an
    /// expression that uses `devices` fails.
    #[must_use]
    pub fn with_devices(mut self, text: &'a str, paths: &Paths, budget: &Budget) -> Self {
        self.devices = Value::read(text, paths, budget).ok();
        self
    }

    /// The variables with these labels, as (key, value), and taints, as (key, value, effect), instead of
    /// the object's own. A taint without a value has an empty one.
    #[must_use]
    pub fn with<'v>(
        &'v self,
        labels: impl IntoIterator<Item = (&'v str, &'v str)>,
        taints: impl IntoIterator<Item = (&'v str, &'v str, &'v str)>,
    ) -> Variables<'v> {
        let taints = taints.into_iter().map(|(key, value, effect)| excerpt::taint(key, value, effect));
        self.of(self.node.with(texts(labels), Value::from(taints.collect::<Vec<_>>())))
    }

    /// The variables for an expression that reads neither labels nor taints.
    #[must_use]
    pub fn without_keys(&self) -> Variables<'_> {
        self.of(self.node.clone())
    }

    fn of<'v>(&'v self, node: Excerpt<'v>) -> Variables<'v> {
        let variables = nodegate_cel::Variables::new().with("node", node.value).with("gpu", self.gpu.clone());
        let known = [("inventory", &self.inventory), ("identity", &self.identity), ("devices", &self.devices)];
        let known = known.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        Variables(known.fold(variables, |variables, (name, value)| variables.with(name, value.clone())))
    }
}

impl<'a> Variables<'a> {
    /// The node `object`, which contains all parts that the expressions read.
    #[must_use]
    pub fn node(object: &Excerpt<'a>) -> NodeVariables<'a> {
        NodeVariables { node: object.clone(), gpu: Value::map([]), inventory: None, identity: None, devices: None }
    }

    /// A write of `object` over `old`, which is `null` to expressions when the node is created. Both are
    /// [completed](Excerpt::completed). An expression that reads `request` fails without one.
    #[must_use]
    pub fn write(object: &Excerpt<'a>, old: Option<&Excerpt<'a>>, request: Option<&RequestValue<'a>>) -> Self {
        let variables = nodegate_cel::Variables::new()
            .with("object", object.value.clone())
            .with("oldObject", old.map_or(Value::NULL, |old| old.value.clone()));
        Self(match request {
            Some(RequestValue(request)) => variables.with("request", request.clone()),
            None => variables,
        })
    }

    /// Charges the steps of evaluations to `budget`; without it, each evaluation has its own limit.
    #[must_use]
    pub fn within(self, budget: &'a Budget) -> Self {
        Self(self.0.within(budget))
    }
}

impl<'a> RequestVariables<'a> {
    /// The variable `request`.
    #[must_use]
    pub fn value(&self) -> RequestValue<'a> {
        let groups: Vec<Value<'a>> = self.groups.iter().map(|group| Value::from(*group)).collect();
        // A part that is too large is left unread, and an expression that reads it has no answer.
        let read = |text| Value::read(text, &Paths::Whole, &Budget::default()).unwrap_or(Value::NULL);
        let extra = self.extra.map_or_else(|| Value::map([]), read);
        let user = [("username", Value::from(self.username)), ("groups", Value::from(groups)), ("extra", extra)];
        let user = Value::map(user.into_iter().chain(self.uid.map(|uid| ("uid", Value::from(uid)))));
        RequestValue(Value::map([
            ("operation", Value::from(self.operation)),
            ("name", Value::from(self.name)),
            ("subResource", Value::from(self.sub_resource)),
            ("dryRun", Value::from(self.dry_run)),
            ("userInfo", user),
        ]))
    }
}

fn texts<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value<'a> {
    Value::map(entries.into_iter().map(|(name, text)| (name, Value::from(text))))
}
