//! Names and types: from what an expression says to what can be evaluated.

use crate::Yields;
use crate::checked::pattern;
use crate::checked::schema::{Schema, Shape, Variable, nearest};
use crate::checked::tree::{Call, Entry, Item, Tree};
use crate::fault::Mistake;
use crate::functions::{self, Function, Run};
use crate::syntax::{Constant, Operator, Syntax, SyntaxKind};
use crate::values::types::{self, Type};

/// A checked part and what is known of its type.
pub(crate) struct Typed {
    pub(crate) tree: Tree,
    pub(crate) of: Type,
    /// Of an optional, the structure of what it may hold.
    pub(crate) shape: Shape,
}

impl Typed {
    pub(crate) fn new(tree: Tree, of: Type) -> Self {
        Self { tree, of, shape: Shape::Any }
    }

    /// The same, of known structure.
    pub(crate) fn shaped(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// Text that is written down.
    pub(crate) fn text(text: &str) -> Self {
        Self::new(Tree::Constant(Constant::Text(text.into())), Type::Text)
    }
}

/// Checks a whole expression. Returns it with the bytes of its compiled patterns.
pub(crate) fn check(syntax: &Syntax, schema: &'static Schema, yields: Yields) -> Result<(Tree, usize), Mistake> {
    let mut checker = Checker::new(schema);
    let tree = checker.answer(syntax, yields)?;
    Ok((tree, checker.patterns))
}

/// The variable of a loop.
pub(crate) struct Local {
    pub(crate) name: String,
    pub(crate) of: Type,
    pub(crate) shape: Shape,
}

pub(crate) struct Checker {
    schema: &'static Schema,
    /// The variables of the loops around this part, the outermost first.
    pub(crate) locals: Vec<Local>,
    /// How many loops over lists or maps are around this part.
    pub(crate) loops: usize,
    /// The bytes of the compiled patterns.
    patterns: usize,
}

impl Checker {
    pub(crate) fn new(schema: &'static Schema) -> Self {
        Self { schema, locals: Vec::new(), loops: 0, patterns: 0 }
    }

    /// A part that is the answer of the expression, or one of its possible answers.
    fn answer(&mut self, syntax: &Syntax, yields: Yields) -> Result<Tree, Mistake> {
        match &syntax.kind {
            SyntaxKind::Choose { test, then, otherwise } => {
                let test = Box::new(self.of_type(test, Type::Bool, "the condition of `? :`")?);
                let then = Box::new(self.answer(then, yields)?);
                let otherwise = Box::new(self.answer(otherwise, yields)?);
                Ok(Tree::Choose { test, then, otherwise })
            }
            SyntaxKind::Map(entries) if yields == Yields::TextMap => {
                for entry in entries {
                    for (part, what) in [(&entry.key, "a key of the map"), (&entry.value, "a value of the map")] {
                        if entry.optional && std::ptr::eq(part, &entry.value) {
                            continue;
                        }
                        self.of_type(part, Type::Text, what)?;
                    }
                }
                Ok(self.part(syntax)?.tree)
            }
            _ => self.of_type(syntax, yields.wanted(), "the expression"),
        }
    }

    /// A part that must be able to yield `wanted`.
    pub(crate) fn of_type(&mut self, syntax: &Syntax, wanted: Type, what: &str) -> Result<Tree, Mistake> {
        self.typed(syntax, wanted, what).map(|found| found.tree)
    }

    /// The same, with what is known of it.
    pub(crate) fn typed(&mut self, syntax: &Syntax, wanted: Type, what: &str) -> Result<Typed, Mistake> {
        let found = self.part(syntax)?;
        if wanted.may_be(found.of) {
            return Ok(found);
        }
        let problem = Mistake::new(syntax.at, format!("{what} must be {}, but is {}", wanted.noun(), found.of.noun()));
        Err(match (wanted, found.of) {
            (_, Type::Optional) => problem.remedy("take the value out of the optional with .orValue(…)"),
            (Type::Text, _) => problem.remedy("convert it with string(…)"),
            (Type::Bool, Type::Text) => problem.remedy("compare it, such as … == \"true\""),
            (Type::Bool, _) => problem.remedy("compare it with something"),
            (Type::Map, _) => problem.remedy("write {\"key\": \"value\"}"),
            _ => problem,
        })
    }

    pub(crate) fn part(&mut self, syntax: &Syntax) -> Result<Typed, Mistake> {
        match &syntax.kind {
            SyntaxKind::Constant(constant) => Ok(Typed::new(Tree::Constant(constant.clone()), type_of(constant))),
            SyntaxKind::Name(name) => self.name(syntax.at, name),
            SyntaxKind::Select { of, name, optional } => {
                let of = self.part(of)?;
                self.member(syntax.at, of, Typed::text(name), *optional)
            }
            SyntaxKind::Index { of, key, optional } => {
                let (of, key) = (self.part(of)?, self.part(key)?);
                self.member(syntax.at, of, key, *optional)
            }
            SyntaxKind::Call { target, name, arguments } => self.call(syntax.at, target.as_deref(), name, arguments),
            SyntaxKind::Not(of) => {
                let of = self.of_type(of, Type::Bool, "what `!` negates")?;
                Ok(Typed::new(Tree::Not(Box::new(of)), Type::Bool))
            }
            SyntaxKind::Negate(of) => self.negate(syntax.at, of),
            SyntaxKind::AllOf(terms) => {
                let terms = self.conditions(terms, "what `&&` joins")?;
                Ok(Typed::new(Tree::AllOf(terms), Type::Bool))
            }
            SyntaxKind::AnyOf(terms) => {
                let terms = self.conditions(terms, "what `||` joins")?;
                Ok(Typed::new(Tree::AnyOf(terms), Type::Bool))
            }
            SyntaxKind::Choose { test, then, otherwise } => {
                let test = Box::new(self.of_type(test, Type::Bool, "the condition of `? :`")?);
                let (then, otherwise) = (self.part(then)?, self.part(otherwise)?);
                let of = if then.of == otherwise.of { then.of } else { Type::Any };
                let (then, otherwise) = (Box::new(then.tree), Box::new(otherwise.tree));
                Ok(Typed::new(Tree::Choose { test, then, otherwise }, of))
            }
            SyntaxKind::Binary { operator, left, right } => {
                let (left, right) = (self.part(left)?, self.part(right)?);
                let of = types::of_binary(*operator, left.of, right.of);
                let of = of.map_err(|message| Mistake::new(syntax.at, message))?;
                if let (Operator::In, Shape::Object(_), Type::Text) = (operator, right.shape, left.of) {
                    shape_of_member(syntax.at, &right, &left)?;
                }
                let (left, right) = (Box::new(left.tree), Box::new(right.tree));
                Ok(Typed::new(Tree::Binary { operator: *operator, left, right }, of))
            }
            SyntaxKind::List(items) => {
                let items = items
                    .iter()
                    .map(|item| Ok(Item { optional: item.optional, value: self.part(&item.value)?.tree }))
                    .collect::<Result<_, Mistake>>()?;
                Ok(Typed::new(Tree::List(items), Type::List))
            }
            SyntaxKind::Map(entries) => self.map(entries),
        }
    }

    fn conditions(&mut self, terms: &[Syntax], what: &str) -> Result<Vec<Tree>, Mistake> {
        terms.iter().map(|term| self.of_type(term, Type::Bool, what)).collect()
    }

    fn negate(&mut self, at: usize, of: &Syntax) -> Result<Typed, Mistake> {
        let of = self.part(of)?;
        match of.of {
            Type::Int | Type::Double | Type::Any => Ok(Typed::new(Tree::Negate(Box::new(of.tree)), of.of)),
            other => Err(Mistake::new(at, format!("`-` cannot take {}", other.noun()))),
        }
    }

    fn map(&mut self, entries: &[crate::syntax::Entry]) -> Result<Typed, Mistake> {
        let mut checked = Vec::with_capacity(entries.len());
        for entry in entries {
            let key = self.part(&entry.key)?;
            if !matches!(key.of, Type::Any | Type::Bool | Type::Int | Type::Uint | Type::Text) {
                return Err(Mistake::new(entry.key.at, format!("{} cannot be a key", key.of.noun())));
            }
            let value = self.part(&entry.value)?.tree;
            checked.push(Entry { optional: entry.optional, key: key.tree, value });
        }
        Ok(Typed::new(Tree::Map(checked), Type::Map))
    }

    fn name(&mut self, at: usize, name: &str) -> Result<Typed, Mistake> {
        if let Some(local) = self.locals.iter().rposition(|local| local.name == name) {
            let (of, shape) = self.locals.get(local).map_or((Type::Any, Shape::Any), |local| (local.of, local.shape));
            return Ok(Typed::new(Tree::Local(local), of).shaped(shape));
        }
        match self.variable(name) {
            Some(variable) => Ok(Typed::new(Tree::Variable(variable), variable.type_of()).shaped(variable.shape)),
            None => {
                let names: Vec<_> = self.schema.variables.iter().map(|variable| variable.name).collect();
                let remedy = match nearest(name, &names) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the variables are {}", names.join(", ")),
                };
                Err(Mistake::new(at, format!("there is no variable `{name}` here")).remedy(remedy))
            }
        }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&'static Variable> {
        self.schema.variable(name)
    }

    fn member(&mut self, at: usize, of: Typed, key: Typed, optional: bool) -> Result<Typed, Mistake> {
        let shape = self.member_of(at, &of, &key)?;
        let result = if optional || of.of == Type::Optional { Type::Optional } else { shape.type_of() };
        let tree = Tree::Member { of: Box::new(of.tree), key: Box::new(key.tree), optional };
        Ok(Typed::new(tree, result).shaped(shape))
    }

    /// The structure of the member `key` of something; an error if there can be none.
    pub(crate) fn member_of(&self, at: usize, of: &Typed, key: &Typed) -> Result<Shape, Mistake> {
        let known = match key.of {
            Type::Any => true,
            Type::Int | Type::Uint | Type::Double => {
                matches!(of.of, Type::Any | Type::Optional | Type::List | Type::Map)
            }
            Type::Bool | Type::Text => matches!(of.of, Type::Any | Type::Optional | Type::Map),
            _ => false,
        };
        if !known {
            let message = format!("members of {} cannot be selected with {}", of.of.noun(), key.of.noun());
            return Err(Mistake::new(at, message));
        }
        shape_of_member(at, of, key)
    }

    /// A macro, or a function of the table.
    fn call(&mut self, at: usize, target: Option<&Syntax>, name: &str, arguments: &[Syntax]) -> Result<Typed, Mistake> {
        if let Some(expanded) = self.expand(at, target, name, arguments)? {
            return Ok(expanded);
        }
        let space = target.and_then(|target| self.namespace(target));
        let (target, name) = match space {
            Some(space) => (None, format!("{space}.{name}")),
            None => (target, name.to_owned()),
        };
        let Some(function) = functions::find(&name, target.is_some()) else {
            return Err(unknown_function(at, &name, target.is_some()));
        };
        let given = arguments.len() + usize::from(target.is_some());
        let (most, least) = (function.parameters.len(), function.parameters.len() - function.optional);
        if given < least || given > most {
            return Err(Mistake::new(at, "wrong number of arguments").remedy(format!("write {}", function.signature())));
        }
        self.invoke(at, function, target.into_iter().chain(arguments))
    }

    fn invoke<'s>(
        &mut self,
        at: usize,
        function: &'static Function,
        given: impl Iterator<Item = &'s Syntax>,
    ) -> Result<Typed, Mistake> {
        let (mut arguments, mut compiled) = (Vec::new(), None);
        for (index, (syntax, wanted)) in given.zip(function.parameters).enumerate() {
            if matches!(function.run, Run::Pattern(_)) && index == 1 {
                compiled = Some(pattern::compile(syntax, function.name, &mut self.patterns)?);
                continue;
            }
            let argument = self.part(syntax)?;
            if !wanted.may_be(argument.of) {
                let what = format!("{} cannot take {} here", function.signature(), argument.of.noun());
                let problem = Mistake::new(if index == 0 { at } else { syntax.at }, what);
                return Err(match (*wanted, argument.of) {
                    (Type::Text, _) => problem.remedy("convert it with string(…)"),
                    (_, Type::Optional) => problem.remedy("use .orValue(…) first"),
                    _ => problem,
                });
            }
            arguments.push(argument.tree);
        }
        let call = Call { function, arguments, pattern: compiled };
        Ok(Typed::new(Tree::Call(Box::new(call)), function.returns))
    }

    /// The namespace of functions that `target` names, unless a variable has that name.
    fn namespace<'s>(&self, target: &'s Syntax) -> Option<&'s str> {
        let SyntaxKind::Name(name) = &target.kind else { return None };
        let hidden = self.variable(name).is_some() || self.locals.iter().any(|local| local.name == *name);
        (!hidden && functions::is_namespace(name)).then_some(name)
    }
}

fn shape_of_member(at: usize, of: &Typed, key: &Typed) -> Result<Shape, Mistake> {
    let key = match &key.tree {
        Tree::Constant(Constant::Text(key)) => Some(&**key),
        _ => None,
    };
    let described = of.tree.path().is_some().then(|| of.tree.describe());
    of.shape.member(key, described).map_err(|problem| problem.moved(at))
}

fn type_of(constant: &Constant) -> Type {
    match constant {
        Constant::Null => Type::Null,
        Constant::Bool(_) => Type::Bool,
        Constant::Int(_) => Type::Int,
        Constant::Uint(_) => Type::Uint,
        Constant::Double(_) => Type::Double,
        Constant::Text(_) => Type::Text,
        Constant::Bytes(_) => Type::Bytes,
    }
}

fn unknown_function(at: usize, name: &str, method: bool) -> Mistake {
    let what = if method { "method" } else { "function" };
    if functions::find(name, !method).is_some() {
        let right = if method { format!("{name}(…)") } else { format!("….{name}(…)") };
        return Mistake::new(at, format!("`{name}` is not called like this")).remedy(format!("write {right}"));
    }
    let names = functions::names(method);
    let remedy = match nearest(name, &names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "only the functions of Kubernetes' CEL are available".to_owned(),
    };
    Mistake::new(at, format!("there is no {what} `{name}`")).remedy(remedy)
}
