//! Line charts as SVG, in the colors of whoever looks at them, light or dark.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The size of one chart.
const SIZE: (u32, u32) = (400, 300);
const FONT: &str = "sans-serif";
/// Colors that plotters writes, and what they are in the light and in the dark.
const TEXT: RGBColor = RGBColor(87, 96, 106);
const GRID: RGBColor = RGBColor(208, 215, 222);
const LINES: [RGBColor; 2] = [RGBColor(9, 105, 218), RGBColor(188, 76, 0)];
const DARK: &str = "<style>@media (prefers-color-scheme: dark){\
[fill=\"#57606A\"]{fill:#9da7b3}[stroke=\"#57606A\"]{stroke:#9da7b3}[stroke=\"#D0D7DE\"]{stroke:#3d444d}\
[fill=\"#0969DA\"]{fill:#58a6ff}[stroke=\"#0969DA\"]{stroke:#58a6ff}\
[fill=\"#BC4C00\"]{fill:#f0883e}[stroke=\"#BC4C00\"]{stroke:#f0883e}}</style>";

/// One line of a chart.
pub(crate) struct Line {
    /// Its name; empty if there is no other.
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart with logarithmic axes.
pub(crate) struct Chart {
    /// The title, which is the quantity with its unit of the y axis.
    pub(crate) y: &'static str,
    /// The quantity with its unit of the x axis.
    pub(crate) x: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// Writes charts side by side into a file.
pub(crate) fn write(path: &Path, description: &str, charts: &[Chart]) {
    let mut svg = String::new();
    {
        let width = SIZE.0 * u32::try_from(charts.len()).expect("few charts");
        let root = SVGBackend::with_string(&mut svg, (width, SIZE.1)).into_drawing_area();
        for (chart, area) in charts.iter().zip(root.split_evenly((1, charts.len()))) {
            draw(chart, &area);
        }
        root.present().expect("drawn");
    }
    // The style and the description go right after the opening tag.
    let end = svg.find('>').expect("an element") + 1;
    let (open, rest) = svg.split_at(end);
    let open = open.replacen("<svg", &format!("<svg role=\"img\" aria-label=\"{description}\""), 1);
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    std::fs::write(path, format!("{open}\n<!-- Drawn by the benchmark `growth`; do not edit. -->\n{DARK}{rest}"))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn draw<B: DrawingBackend>(chart: &Chart, area: &DrawingArea<B, plotters::coord::Shift>)
where
    B::ErrorType: 'static,
{
    let all = || chart.lines.iter().flat_map(|line| &line.points);
    let span = |of: fn(&(f64, f64)) -> f64| {
        let least = all().map(of).fold(f64::MAX, f64::min);
        (least, all().map(of).fold(f64::MIN, f64::max))
    };
    let (x, y) = (span(|point| point.0), span(|point| point.1));
    // Whole decades, so that every axis has at least two labels.
    let y = 10_f64.powf(y.0.log10().floor())..10_f64.powf(y.1.log10().ceil().max(y.0.log10().floor() + 1.0)) * 1.01;
    let mut plot = ChartBuilder::on(area)
        .margin(10)
        .margin_right(24)
        .margin_top(30)
        .set_label_area_size(LabelAreaPosition::Left, 56)
        .set_label_area_size(LabelAreaPosition::Bottom, 44)
        .build_cartesian_2d((x.0 * 0.9..x.1 * 1.1).log_scale(), y.log_scale())
        .expect("axes");
    plot.configure_mesh()
        .x_labels(6)
        .y_labels(6)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(TEXT)
        .label_style((FONT, 18, &TEXT))
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .x_desc(chart.x)
        .draw()
        .expect("a mesh");
    let title = TextStyle::from((FONT, 19_u32)).color(&TEXT).pos(Pos::new(HPos::Left, VPos::Top));
    area.draw_text(chart.y, &title, (14, 8)).expect("a title");
    let mut row = 40;
    for (line, color) in chart.lines.iter().zip(LINES) {
        plot.draw_series([PathElement::new(line.points.clone(), color.stroke_width(2))]).expect("a line");
        let points = line.points.iter().map(|point| Circle::new(*point, 3, color.filled()));
        plot.draw_series(points).expect("points");
        // Where no line is: all of them rise to the right.
        let style = TextStyle::from((FONT, 18_u32)).color(&color).pos(Pos::new(HPos::Left, VPos::Top));
        area.draw_text(line.name, &style, (78, row)).expect("a name");
        row += 20;
    }
}

/// A number as an axis shows it: `10k`, `0.5`.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value => format!("{value}"),
    }
}
