//! Lists of objects, page by page.

use kube::api::ListParams;
use kube::core::ListMeta;

/// What asks for the page after the one that was asked for with `parameters` and has this metadata; `None` if that was the last one.
pub fn next_page(parameters: ListParams, page: &ListMeta) -> Option<ListParams> {
    // An API server that is done leaves the token out, or empty.
    let token = page.continue_.as_deref().filter(|token| !token.is_empty())?;
    Some(parameters.continue_token(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_without_a_token_or_with_an_empty_one_is_the_last() {
        let after = |token: Option<&str>| {
            let metadata = ListMeta { continue_: token.map(str::to_owned), ..ListMeta::default() };
            next_page(ListParams::default().limit(500), &metadata).map(|next| (next.limit, next.continue_token))
        };
        assert_eq!((after(None), after(Some(""))), (None, None));
        assert_eq!(after(Some("t")), Some((Some(500), Some("t".to_owned()))));
    }
}
