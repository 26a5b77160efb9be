"""The page of errors says what the committed figures say."""

from tests.validation.accuracy_page import PAGE, page, served


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m tests.validation.accuracy_page"


def test_fitted_and_other_groups_are_apart() -> None:
    text = served()
    assert text.count("| unfitted |") == text.count("| fitted |") == 4
