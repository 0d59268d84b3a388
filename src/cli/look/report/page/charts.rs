//! The charts of the page. Their colors and fonts are the style sheet's.

use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use maud::{Markup, html};

/// The width of columns: it fits the narrowest phone, and texts keep their size.
const WIDTH: u32 = 300;
/// The height of the scale below columns.
const SCALE: u32 = 22;
/// The height of a row of columns.
const ROW: u32 = 64;
/// The width of the names and the scale beside columns.
const NAMES: u32 = 120;
/// The font size. The SVG has this divided by 1.24.
const TEXT: u32 = 16;

/// One bar of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bar {
    /// Its name.
    pub(super) name: String,
    /// Its length.
    pub(super) value: f64,
    /// The value as it is written beside it.
    pub(super) shown: String,
}

/// Horizontal bars, the first one at the top, each after its name and before its value. They take the width that there is.
pub(super) fn bars(bars: &[Bar]) -> Markup {
    let longest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let longest = if longest > 0.0 { longest } else { 1.0 };
    html! {
        div.bars {
            @for Bar { name, value, shown } in bars {
                span { (name) } progress value=(value) max=(longest) {} span.number { (shown) }
            }
        }
    }
}

/// One row of columns above another, all of them with the same scale. `ticks`: the names of the columns.
///
/// # Errors
/// Returns an error if the chart cannot be drawn, which is a bug in nodegate.
pub(super) fn columns(rows: &[(&str, Vec<u32>)], ticks: &[String]) -> anyhow::Result<String> {
    let mut svg = String::new();
    let height = ROW * u32::try_from(rows.len())? + SCALE;
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let highest = rows.iter().flat_map(|(_, counts)| counts).copied().max().unwrap_or_default().max(1);
        for (at, (name, counts)) in rows.iter().enumerate() {
            let last = at + 1 == rows.len();
            let top = i32::try_from(ROW * u32::try_from(at)?)?;
            let area = root.clone().shrink((0, top), (WIDTH, if last { ROW + SCALE } else { ROW }));
            let mut chart = ChartBuilder::on(&area)
                .margin_top(10)
                .margin_right(12)
                .set_label_area_size(LabelAreaPosition::Left, NAMES)
                .set_label_area_size(LabelAreaPosition::Bottom, if last { SCALE } else { 1 })
                .build_cartesian_2d((0..counts.len().saturating_sub(1)).into_segmented(), 0..highest)
                .map_err(drawn)?;
            let tick = |at: &SegmentValue<usize>| match at {
                SegmentValue::CenterOf(at) if last => ticks.get(*at).cloned().unwrap_or_default(),
                _ => String::new(),
            };
            chart
                .configure_mesh()
                .disable_mesh()
                .x_labels(3)
                .x_label_formatter(&tick)
                .y_labels(3)
                .label_style(("monospace", TEXT))
                .draw()
                .map_err(drawn)?;
            let columns = counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(at, count)| {
                let corners = [(SegmentValue::Exact(at), 0), (SegmentValue::Exact(at + 1), *count)];
                let mut rectangle = Rectangle::new(corners, BLACK.filled());
                rectangle.set_margin(0, 0, 0, 1);
                rectangle
            });
            chart.draw_series(columns).map_err(drawn)?;
            area.draw_text(name, &left(VPos::Center), (0, i32::try_from(ROW / 2)?)).map_err(drawn)?;
        }
        root.present().map_err(drawn)?;
    }
    Ok(svg)
}

/// A text to the right of its position.
fn left(vertical: VPos) -> TextStyle<'static> {
    TextStyle::from(("monospace", TEXT)).pos(Pos::new(HPos::Left, vertical))
}

fn drawn<E: std::error::Error + Send + Sync + 'static>(error: DrawingAreaErrorKind<E>) -> anyhow::Error {
    anyhow::anyhow!("a chart cannot be drawn: {error}; this is a bug in nodegate")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The values of an attribute of all rectangles.
    fn of_rectangles(svg: &str, attribute: &str) -> Vec<f64> {
        let start = format!(" {attribute}=\"");
        let values = svg.lines().filter(|line| line.starts_with("<rect"));
        values.map(|line| line.split(&start).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn bars_are_as_long_as_their_values_and_the_longest_takes_the_width() {
        let bar = |name: &str, value: f64| Bar { name: name.to_owned(), value, shown: value.to_string() };
        let html = bars(&[bar("a", 1000.0), bar("<b>", 500.0), bar("c", 0.0)]).into_string();
        for length in ["1000", "500", "0"] {
            assert!(html.contains(&format!("<progress value=\"{length}\" max=\"1000\">")), "{html}");
        }
        assert!(html.contains("&lt;b&gt;"), "{html}");
        let zeros = bars(&[bar("a", 0.0)]).into_string();
        assert!(zeros.contains("<progress value=\"0\" max=\"1\">"), "{zeros}");
    }

    #[test]
    fn each_column_can_be_seen_and_is_as_high_as_its_value() {
        let counts: Vec<u32> = (0..49).map(|at| at % 3).collect();
        let ticks: Vec<String> = counts.iter().map(u32::to_string).collect();
        let svg = columns(&[("user", counts.clone()), ("restored", vec![4; 49])], &ticks).unwrap();
        let (widths, heights) = (of_rectangles(&svg, "width"), of_rectangles(&svg, "height"));
        assert_eq!(widths.len(), counts.iter().filter(|count| **count > 0).count() + 49);
        assert!(widths.iter().all(|width| *width >= 1.0), "{widths:?}");
        assert!((heights[1] - 2.0 * heights[0]).abs() <= 2.0 && heights[0] > 5.0, "{heights:?}");
        assert!((heights.last().unwrap() - 2.0 * heights[1]).abs() <= 2.0, "{heights:?}");
    }
}
