//! The charts of the page, as SVG. Their colours and fonts are the style sheet's.

use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::text::cut_to_characters;

/// The width of a chart: it fits a phone, and texts keep their size.
const WIDTH: u32 = 360;
/// The height of a bar with the space around it.
const BAR: u32 = 26;
/// The width of the names beside bars, and of the names and the scale beside columns; and what fits there.
const NAMES: u32 = 130;
const NAME_CHARACTERS: usize = 15;
/// The width of a character of the number at the end of a bar, and of the space before it.
const CHARACTER: u32 = 9;
/// The height of a row of columns.
const ROW: u32 = 64;
/// The font size.
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

/// Horizontal bars, the first one at the top.
///
/// # Errors
/// Returns an error if the chart cannot be drawn, which is a bug in nodegate.
pub(super) fn bars(bars: &[Bar]) -> anyhow::Result<String> {
    let mut svg = String::new();
    let height = BAR * u32::try_from(bars.len())?;
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        // The longest bar leaves room for the number after it.
        let numbers = bars.iter().map(|bar| bar.shown.chars().count()).max().unwrap_or_default() + 1;
        let room = f64::from(CHARACTER * u32::try_from(numbers)?) / f64::from(WIDTH - NAMES);
        let longest = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        let mut chart = ChartBuilder::on(&area)
            .set_label_area_size(LabelAreaPosition::Left, NAMES)
            .build_cartesian_2d(
                0.0..longest / (1.0 - room.min(0.9)),
                (0..bars.len().saturating_sub(1)).into_segmented(),
            )
            .map_err(drawn)?;
        // The axis counts from below.
        let bar_at = |at: usize| bars.len().checked_sub(at + 1).and_then(|at| bars.get(at));
        let name_of = |at: &SegmentValue<usize>| match at {
            SegmentValue::CenterOf(at) | SegmentValue::Exact(at) => bar_at(*at).map(name).unwrap_or_default(),
            SegmentValue::Last => String::new(),
        };
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_x_axis()
            .axis_style(TRANSPARENT)
            .y_labels(bars.len())
            .y_label_formatter(&name_of)
            .y_label_style(("monospace", TEXT))
            .draw()
            .map_err(drawn)?;
        let rows = || (0..bars.len()).filter_map(|at| Some((at, bar_at(at)?)));
        let rectangles = rows().map(|(at, bar)| {
            let corners = [(0.0, SegmentValue::Exact(at)), (bar.value, SegmentValue::Exact(at + 1))];
            let mut rectangle = Rectangle::new(corners, BLACK.filled());
            rectangle.set_margin(4, 4, 0, 0);
            rectangle
        });
        chart.draw_series(rectangles).map_err(drawn)?;
        let style = TextStyle::from(("monospace", TEXT)).pos(Pos::new(HPos::Left, VPos::Center));
        let numbers = rows().map(|(at, bar)| {
            let end = EmptyElement::at((bar.value, SegmentValue::CenterOf(at)));
            end + Text::new(bar.shown.clone(), (6, 0), style.clone())
        });
        chart.draw_series(numbers).map_err(drawn)?;
        area.present().map_err(drawn)?;
    }
    Ok(svg)
}

fn name(bar: &Bar) -> String {
    let mut name = bar.name.clone();
    cut_to_characters(&mut name, NAME_CHARACTERS);
    name
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
                .margin_right(10)
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
                .x_labels(4)
                .x_label_formatter(&tick)
                .y_labels(3)
                .label_style(("monospace", TEXT))
                .draw()
                .map_err(drawn)?;
            let columns = counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(at, count)| {
                let corners = [(SegmentValue::Exact(at), 0), (SegmentValue::Exact(at + 1), *count)];
                let mut rectangle = Rectangle::new(corners, BLACK.filled());
                rectangle.set_margin(0, 0, 1, 1);
                rectangle
            });
            chart.draw_series(columns).map_err(drawn)?;
            let style = TextStyle::from(("monospace", TEXT)).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw_text(name, &style, (0, i32::try_from(ROW / 2)?)).map_err(drawn)?;
        }
        root.present().map_err(drawn)?;
    }
    Ok(svg)
}

fn drawn<E: std::error::Error + Send + Sync + 'static>(error: DrawingAreaErrorKind<E>) -> anyhow::Error {
    anyhow::anyhow!("a chart cannot be drawn: {error}; this is a bug in nodegate")
}
