//! The charts of the page, as SVG. Their colors and fonts are the style sheet's.

use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use nodegate_base::text::cut_to_characters;

/// The width of a chart: it fits the narrowest phone, and texts keep their size.
const WIDTH: u32 = 300;
/// The height of a line of text, which has the name of a bar.
const LINE: u32 = 18;
/// The height of a bar with the space below it.
const BAR: u32 = 22;
/// The space below a bar.
const GAP: u32 = 8;
/// The height of a row of columns.
const ROW: u32 = 64;
/// The width of the names and the scale beside columns.
const NAMES: u32 = 120;
/// The font size. The SVG has this divided by 1.24.
const TEXT: u32 = 16;
/// The width of a character in that size, rounded up.
const CHARACTER: u32 = 8;

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

/// Horizontal bars, the first one at the top, each below its name.
///
/// # Errors
/// Returns an error if the chart cannot be drawn, which is a bug in nodegate.
pub(super) fn bars(bars: &[Bar]) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let height = (LINE + BAR) * u32::try_from(bars.len())?;
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let longest = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        // The longest bar leaves room for the number after it.
        let numbers = bars.iter().map(|bar| bar.shown.chars().count()).max().unwrap_or_default() + 1;
        let room = f64::from(CHARACTER * u32::try_from(numbers)?) / f64::from(WIDTH);
        let scale = 0.0..longest / (1.0 - room.min(0.9));
        for (bar, area) in bars.iter().zip(root.split_evenly((bars.len().max(1), 1))) {
            let (above, below) = area.split_vertically(LINE);
            let mut name = bar.name.clone();
            cut_to_characters(&mut name, usize::try_from(WIDTH / CHARACTER)?);
            above.draw_text(&name, &left(VPos::Top), (0, 2)).map_err(drawn)?;
            let mut chart = ChartBuilder::on(&below).build_cartesian_2d(scale.clone(), 0..BAR).map_err(drawn)?;
            let rectangle = Rectangle::new([(0.0, GAP), (bar.value, BAR)], BLACK.filled());
            let end = EmptyElement::at((bar.value, u32::midpoint(GAP, BAR)));
            let number = Text::new(bar.shown.clone(), (6, 0), left(VPos::Center));
            chart.draw_series([rectangle]).map_err(drawn)?;
            chart.draw_series([end + number]).map_err(drawn)?;
        }
        root.present().map_err(drawn)?;
    }
    Ok(svg)
}

/// One row of columns above another, all of them with the same scale. `ticks`: the names of the columns.
///
/// # Errors
/// Returns an error if the chart cannot be drawn, which is a bug in nodegate.
pub(super) fn columns(rows: &[(&str, Vec<u32>)], ticks: &[String]) -> anyhow::Result<String> {
    let mut svg = String::new();
    let height = ROW * u32::try_from(rows.len())? + BAR;
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let highest = rows.iter().flat_map(|(_, counts)| counts).copied().max().unwrap_or_default().max(1);
        for (at, (name, counts)) in rows.iter().enumerate() {
            let last = at + 1 == rows.len();
            let top = i32::try_from(ROW * u32::try_from(at)?)?;
            let area = root.clone().shrink((0, top), (WIDTH, if last { ROW + BAR } else { ROW }));
            let mut chart = ChartBuilder::on(&area)
                .margin_top(10)
                .margin_right(12)
                .set_label_area_size(LabelAreaPosition::Left, NAMES)
                .set_label_area_size(LabelAreaPosition::Bottom, if last { BAR } else { 1 })
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

    fn bar(name: &str, value: f64) -> Bar {
        Bar { name: name.to_owned(), value, shown: value.to_string() }
    }

    #[test]
    fn bars_are_as_long_as_their_values_and_leave_room_for_the_numbers() {
        let svg = bars(&[bar("a", 1000.0), bar("b", 500.0), bar("c", 0.0)]).unwrap();
        let widths = of_rectangles(&svg, "width");
        assert!((widths[0] - 2.0 * widths[1]).abs() <= 2.0 && widths[2] == 0.0, "{widths:?}");
        assert!(widths[0] > 200.0 && widths[0] + 5.0 * 8.0 <= 300.0, "{widths:?}");
        let zeros = bars(&[bar("a", 0.0)]).unwrap();
        assert_eq!(of_rectangles(&zeros, "width"), [0.0]);
    }

    #[test]
    fn names_that_differ_only_at_their_end_are_told_apart_as_long_as_a_line_has_room() {
        let svg = bars(&[bar("governance-policy/required-1", 1.0), bar("governance-policy/required-2", 1.0)]).unwrap();
        assert!(svg.contains("required-1\n") && svg.contains("required-2\n"), "{svg}");
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
