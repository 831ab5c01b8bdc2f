"""The page of all claims: what stands in it is what the ledger says."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

from rl4llm.app.cli import app
from rl4llm.atlas.claims import CLAIMS, VERDICTS, claim_table, claim_verdict, why_waiting
from rl4llm.atlas.claims_report import (
    claim_section,
    plot_claim,
    report_html,
    told_claims,
    verdict_counts,
    write_report,
)
from rl4llm.atlas.regime_maps import maps_of_claim
from rl4llm.studies.study import study_file

pytestmark = pytest.mark.skipif(
    not study_file('frontier').exists(), reason='stored runs come with the source tree alone'
)


def test_told_claims_are_those_with_runs_in_the_order_of_the_words():
    told = told_claims()
    assert {claim.name for claim in told} == {
        name for name, claim in CLAIMS.items() if claim.parts and not why_waiting(claim)
    }
    places = [VERDICTS.index(claim_verdict(claim)) for claim in told]
    assert places == sorted(places)
    counts = verdict_counts()
    assert counts.sum() == len(CLAIMS)
    for word, count in counts.items():
        assert count == sum(claim_verdict(claim) == word for claim in CLAIMS.values())


@pytest.mark.parametrize('claim', told_claims(), ids=lambda claim: claim.name)
def test_pictures_show_the_numbers_of_the_ledger(claim):
    ax = plot_claim(claim)
    rows = claim_table(claim).to_dict('records')
    words = [text.get_text() for text in ax.texts]
    dots = [line for line in ax.lines if line.get_marker() == 'o']
    ends = [line for line in ax.lines if line.get_linewidth() == 3]
    known = [row for row in rows if np.isfinite(row['difference'])]
    assert len(dots) == len(ends) == len(known)
    for row, dot, bar in zip(known, dots, ends):
        assert np.sign(dot.get_xdata()[0]) == np.sign(row['difference'])
        low, high = bar.get_xdata()
        width = (high - low) / dot.get_xdata()[0]
        assert np.isclose(width, (row['high'] - row['low']) / row['difference'])
    for row in rows:
        assert any(row['verdict'] in text for text in words)
    plt.close(ax.figure)


def test_a_claim_without_runs_has_no_picture():
    with pytest.raises(ValueError, match='calibration_kept.*waits'):
        plot_claim('calibration_kept')
    assert 'stated confidence' in claim_section('calibration_kept')


def test_the_table_has_a_row_for_each_told_claim():
    text = report_html()
    assert text.count('<tr>') == text.count('<img') == len(told_claims())
    for claim in told_claims():
        assert f'<b>{claim_verdict(claim)}</b>' in text


def test_the_page_holds_all_claims_and_every_picture_it_names(tmp_path):
    done = CliRunner().invoke(app, ['claims', 'report', '--out', str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = (tmp_path / 'claims.md').read_text()
    drawn = {file.stem for file in (tmp_path / 'claims').iterdir()}
    for name, claim in CLAIMS.items():
        section = text.split(f'## {name}\n')[1].split('\n## ')[0]
        assert f'**{claim_verdict(claim)}.** {claim.statement}' in section
        has_runs = claim.parts and not why_waiting(claim)
        assert (f'claims/{name}.png' in section) == bool(has_runs) == (name in drawn)
        if has_runs:
            assert claim.differs in section and f'rl4llm claims run {name}' in section
            for found in maps_of_claim(name):
                assert f'map_{found.name}' in drawn and f'map_{found.name}.png' in section
    head = text.split('\n## ')[0]
    assert head.count('.png') == len(told_claims())
    assert write_report(tmp_path).read_text() == text
