//! The parts of CEL that look like calls and are not: `has`, loops, and what may not be evaluated.

use crate::checked::check::{Checker, Local, Typed};
use crate::checked::schema::Shape;
use crate::checked::tree::{Loop, LoopKind, Tree};
use crate::fault::Mistake;
use crate::syntax::{Syntax, SyntaxKind};
use crate::values::types::Type;

/// Loops over lists or maps inside each other.
pub(crate) const MAX_LOOPS: usize = 2;

/// The shape of a macro: its kind, how many variables it names, and whether it has a filter.
fn shape(name: &str, arguments: usize) -> Option<(LoopKind, usize, bool)> {
    Some(match (name, arguments) {
        ("all", 2) => (LoopKind::All, 1, false),
        ("all", 3) => (LoopKind::All, 2, false),
        ("exists", 2) => (LoopKind::Exists, 1, false),
        ("exists", 3) => (LoopKind::Exists, 2, false),
        ("exists_one" | "existsOne", 2) => (LoopKind::ExistsOne, 1, false),
        ("exists_one" | "existsOne", 3) => (LoopKind::ExistsOne, 2, false),
        ("filter", 2) => (LoopKind::Filter, 1, false),
        ("map", 2) => (LoopKind::Collect, 1, false),
        ("map", 3) => (LoopKind::Collect, 1, true),
        ("transformList", 3) => (LoopKind::Collect, 2, false),
        ("transformList", 4) => (LoopKind::Collect, 2, true),
        ("sortBy", 2) => (LoopKind::SortBy, 1, false),
        ("transformMap", 3) => (LoopKind::TransformMap, 2, false),
        ("transformMap", 4) => (LoopKind::TransformMap, 2, true),
        ("transformMapEntry", 3) => (LoopKind::TransformMapEntry, 2, false),
        ("transformMapEntry", 4) => (LoopKind::TransformMapEntry, 2, true),
        ("optMap", 2) => (LoopKind::OptionalMap, 1, false),
        ("optFlatMap", 2) => (LoopKind::OptionalFlatMap, 1, false),
        _ => return None,
    })
}

fn usage(name: &str) -> Option<&'static str> {
    Some(match name {
        "all" => "list.all(x, condition)",
        "exists" => "list.exists(x, condition)",
        "exists_one" | "existsOne" => "list.exists_one(x, condition)",
        "filter" => "list.filter(x, condition)",
        "map" => "list.map(x, value) or list.map(x, condition, value)",
        "transformList" => "map.transformList(key, value, result)",
        "sortBy" => "list.sortBy(x, key)",
        "transformMap" => "map.transformMap(key, value, result)",
        "transformMapEntry" => "map.transformMapEntry(key, value, {newKey: newValue})",
        "optMap" => "optional.optMap(x, value)",
        "optFlatMap" => "optional.optFlatMap(x, optional)",
        _ => return None,
    })
}

impl Checker {
    /// The part that a macro stands for; `None` if this is a call.
    pub(crate) fn expand(
        &mut self,
        at: usize,
        target: Option<&Syntax>,
        name: &str,
        arguments: &[Syntax],
    ) -> Result<Option<Typed>, Mistake> {
        match (target, name, arguments) {
            (None, "has", _) => self.has(at, arguments).map(Some),
            (Some(target), "orValue" | "or", [otherwise]) => {
                self.or_else(target, otherwise, name == "orValue").map(Some)
            }
            (Some(target), _, _) => match (shape(name, arguments.len()), usage(name)) {
                (Some(shape), _) => self.repeat(at, shape, target, arguments).map(Some),
                (None, Some(usage)) => {
                    Err(Mistake::new(at, format!("`{name}` is not called like this")).remedy(format!("write {usage}")))
                }
                (None, None) => Ok(None),
            },
            _ => Ok(None),
        }
    }

    fn has(&mut self, at: usize, arguments: &[Syntax]) -> Result<Typed, Mistake> {
        let [Syntax { kind: SyntaxKind::Select { of, name, optional: false }, .. }] = arguments else {
            return Err(Mistake::new(at, "`has` needs a field")
                .remedy("write has(a.b), or \"b\" in a for a key that is not an identifier"));
        };
        let of = self.part(of)?;
        self.member_of(at, &of, &Typed::text(name))?;
        Ok(Typed::new(Tree::Has { of: Box::new(of.tree), field: name.as_str().into() }, Type::Bool))
    }

    fn or_else(&mut self, target: &Syntax, otherwise: &Syntax, unwrap: bool) -> Result<Typed, Mistake> {
        let of = self.typed(target, Type::Optional, "what has a default")?;
        let otherwise = if unwrap {
            self.part(otherwise)?
        } else {
            self.typed(otherwise, Type::Optional, "what `or` takes instead")?
        };
        // What is empty, or no list or map at all, has no members that could be others than those of what it stands for.
        let plain = match &otherwise.tree {
            Tree::List(items) => items.is_empty(),
            Tree::Map(entries) => entries.is_empty(),
            _ => !matches!(otherwise.of, Type::List | Type::Map | Type::Any | Type::Optional),
        };
        let shape = if plain && otherwise.of == of.shape.type_of() { of.shape } else { Shape::Any };
        let result = if unwrap { shape.type_of() } else { Type::Optional };
        let tree = Tree::OrElse { of: Box::new(of.tree), otherwise: Box::new(otherwise.tree), unwrap };
        Ok(Typed::new(tree, result).shaped(shape))
    }

    fn repeat(
        &mut self,
        at: usize,
        (kind, variables, filtered): (LoopKind, usize, bool),
        target: &Syntax,
        arguments: &[Syntax],
    ) -> Result<Typed, Mistake> {
        let optional = matches!(kind, LoopKind::OptionalMap | LoopKind::OptionalFlatMap);
        let range = self.part(target)?;
        let fits = match range.of {
            Type::Any => true,
            Type::Map => !optional && kind != LoopKind::SortBy,
            Type::List => !optional,
            Type::Optional => optional,
            _ => false,
        };
        if !fits {
            let wanted = if optional { "an optional" } else { "a list or a map" };
            return Err(Mistake::new(at, format!("this needs {wanted} before the dot, not {}", range.of.noun())));
        }
        self.loops += usize::from(!optional);
        if self.loops > MAX_LOOPS {
            return Err(Mistake::new(at, format!("more than {MAX_LOOPS} loops are nested here")));
        }
        let (names, parts) = arguments.split_at(variables.min(arguments.len()));
        let locals = self.locals.len();
        for (index, name) in names.iter().enumerate() {
            let (of, shape) = of_variable(&range, index, names.len());
            self.declare(name, of, shape)?;
        }
        let filter = match parts.first() {
            Some(filter) if filtered => Some(self.of_type(filter, Type::Bool, "the condition")?),
            _ => None,
        };
        let body = parts.last().ok_or_else(|| Mistake::new(at, "this loop has no body"))?;
        let body = self.body(kind, body)?;
        let shape = match kind {
            LoopKind::Filter | LoopKind::SortBy if range.of == Type::List => range.shape,
            LoopKind::OptionalMap | LoopKind::OptionalFlatMap => body.shape,
            _ => Shape::Any,
        };
        self.locals.truncate(locals);
        self.loops -= usize::from(!optional);
        let of = match kind {
            LoopKind::All | LoopKind::Exists | LoopKind::ExistsOne => Type::Bool,
            LoopKind::Filter | LoopKind::Collect | LoopKind::SortBy => Type::List,
            LoopKind::TransformMap | LoopKind::TransformMapEntry => Type::Map,
            LoopKind::OptionalMap | LoopKind::OptionalFlatMap => Type::Optional,
        };
        let tree = Loop { kind, two_variables: variables == 2, range: range.tree, filter, body: body.tree };
        Ok(Typed::new(Tree::Loop(Box::new(tree)), of).shaped(shape))
    }

    fn body(&mut self, kind: LoopKind, syntax: &Syntax) -> Result<Typed, Mistake> {
        match kind {
            LoopKind::All | LoopKind::Exists | LoopKind::ExistsOne | LoopKind::Filter => {
                self.typed(syntax, Type::Bool, "the condition")
            }
            LoopKind::TransformMapEntry => {
                self.typed(syntax, Type::Map, "what transformMapEntry yields for each entry")
            }
            LoopKind::OptionalFlatMap => self.typed(syntax, Type::Optional, "what optFlatMap yields"),
            LoopKind::Collect | LoopKind::SortBy | LoopKind::TransformMap | LoopKind::OptionalMap => self.part(syntax),
        }
    }

    fn declare(&mut self, syntax: &Syntax, of: Type, shape: Shape) -> Result<(), Mistake> {
        let SyntaxKind::Name(name) = &syntax.kind else {
            return Err(Mistake::new(syntax.at, "the variable of a loop must be an identifier"));
        };
        if self.variable(name).is_some() {
            let problem = Mistake::new(syntax.at, format!("`{name}` is already defined"));
            return Err(problem.remedy("choose another name for the variable of the loop"));
        }
        self.locals.push(Local { name: name.clone(), of, shape });
        Ok(())
    }
}

/// The type and the structure of the variable `index` of `count` variables over `range`.
fn of_variable(range: &Typed, index: usize, count: usize) -> (Type, Shape) {
    let item = match (range.of, index, count) {
        (Type::Map, 0, _) if range.shape.has_text_keys() => return (Type::Text, Shape::Text),
        (Type::List, 0, 2) => return (Type::Int, Shape::Int),
        (Type::Map, 1, _) | (Type::List, ..) => range.shape.item(),
        (Type::Optional, ..) => range.shape,
        _ => Shape::Any,
    };
    (item.type_of(), item)
}
